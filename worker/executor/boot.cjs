/**
 * The first file of an executor, plain JavaScript. The worker sends the other files, already compiled to functions, and
 * their code caches on standard input, which shortens the start.
 */
const { readFileSync } = require('node:fs')
const { Script } = require('node:vm')

const STDIN = 0
const [code, codeCache, source, cache] = readFileSync(STDIN, 'latin1').split('\0')
const files = JSON.parse(code)
const caches = codeCache === '' ? {} : JSON.parse(codeCache)
const scripts = Object.create(null)
const loaded = Object.create(null)

function load(name) {
  if (name.startsWith('node:')) return require(name)
  if (loaded[name] !== undefined) return loaded[name]
  const exported = {}
  loaded[name] = exported
  const known = caches[name]
  scripts[name] = new Script(files[name], {
    filename: name,
    ...(known ? { cachedData: Buffer.from(known, 'base64') } : {}),
  })
  scripts[name].runInThisContext()(exported, load)
  return exported
}

function makeCodeCache() {
  const made = Object.entries(scripts).map(([name, script]) => {
    return [name, script.createCachedData().toString('base64')]
  })
  return JSON.stringify(Object.fromEntries(made))
}

load('./main.ts').open(source, cache, makeCodeCache)
