/**
 * The first file of an executor, plain JavaScript: the others come on its standard input, as the worker has made
 * functions of them once. To strip them of their types and to link them here would take a third of a start.
 */
const { readFileSync } = require('node:fs')
const { compileFunction } = require('node:vm')

const STDIN = 0
const files = JSON.parse(readFileSync(STDIN, 'utf8'))
const loaded = Object.create(null)

function load(name) {
  if (name.startsWith('node:')) return require(name)
  if (loaded[name] !== undefined) return loaded[name]
  const exported = {}
  loaded[name] = exported
  compileFunction(files[name], ['exported', 'load'], { filename: name })(exported, load)
  return exported
}

load('./main.ts')
