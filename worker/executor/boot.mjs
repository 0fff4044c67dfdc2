/**
 * The first file of an executor, plain JavaScript: the others come on its standard input, as the worker has
 * stripped them of their types once. To strip them here would take half the processor time of a start.
 */
import { readFileSync } from 'node:fs'
import { registerHooks } from 'node:module'

const STDIN = 0
const sources = JSON.parse(readFileSync(STDIN, 'utf8'))

registerHooks({
  load(url, context, next) {
    const source = sources[url]
    return source === undefined
      ? next(url, context)
      : { format: 'module', source, shortCircuit: true }
  },
})

await import('./main.ts')
