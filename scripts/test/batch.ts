/**
 * `node scripts/test/batch.ts <file> …`: runs test files in sequence in one process, each as a test of the report.
 * Shared code is loaded once.
 */
import { registerHooks } from 'node:module'
import { resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import t, { type Test } from 'tap'
import { cpuSeconds } from './process.ts'

const SCHEME = 'tap-of:'
/** URL of a file → its test; in the file, `tap` is that test. */
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
