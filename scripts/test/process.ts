/** Loaded first into each process of tests: lightens tap, and lets the report end with the processor time. */
import { readFileSync } from 'node:fs'
import { registerHooks } from 'node:module'

/** The kernel counts in hundredths of a second; children count when they have ended. */
const PER_SECOND = 100
const DOMAIN = new URL('domain.ts', import.meta.url).href

/** Fields 14 to 17 of /proc/self/stat, counted behind the name's bracket; 0 where there is no such file. */
export function cpuSeconds(): number {
  try {
    const stat = readFileSync('/proc/self/stat', 'latin1')
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
    return fields.slice(11, 15).reduce((sum, field) => sum + Number(field), 0) / PER_SECOND
  } catch {
    return 0
  }
}

// The runner asks for its own time, and has no tap.
if (process.env.TAP) {
  registerHooks({
    resolve: (name, context, next) =>
      name === 'async-hook-domain' ? { url: DOMAIN, shortCircuit: true } : next(name, context),
  })
  process.on('exit', () => console.log(`# cpu ${process.argv[1]}: ${cpuSeconds()}`))
}
