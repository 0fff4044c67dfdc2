/**
 * `node scripts/test/batch.ts <file> …`: test files one after the other in one process, each a test of its report.
 * What they have in common is loaded and compiled once, which takes a second of CPU in a process of its own.
 */
import { registerHooks } from 'node:module'
import { resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import t, { type Test } from 'tap'
import { cpuSeconds } from './process.ts'

const SCHEME = 'tap-of:'
/** URL of a file → the test that it is; in it, `tap` is that test. */
const tests = new Map<string, Test>()
Reflect.set(globalThis, Symbol.for(SCHEME), tests)

registerHooks({
  resolve(name, context, next) {
    const { parentURL = '' } = context
    if (name !== 'tap' || !tests.has(parentURL)) return next(name, context)
    return { url: `${SCHEME}${parentURL}`, format: 'module', shortCircuit: true }
  },
  load(url, context, next) {
    if (!url.startsWith(SCHEME)) return next(url, context)
    const file = JSON.stringify(url.slice(SCHEME.length))
    const source = `export default globalThis[Symbol.for('${SCHEME}')].get(${file})`
    return { format: 'module', shortCircuit: true, source }
  },
})

for (const file of process.argv.slice(2)) {
  const { href } = pathToFileURL(resolve(file))
  const before = cpuSeconds()
  await t.test(file, async (own) => {
    tests.set(href, own)
    await import(href)
  })
  t.comment(`cpu ${file}: ${(cpuSeconds() - before).toFixed(2)}`)
}
