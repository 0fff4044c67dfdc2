/** Preloaded into test processes: lightens tap, and appends the CPU time to the report. */
import { readFileSync } from 'node:fs'
import { registerHooks } from 'node:module'

const PER_SECOND = 100
const DOMAIN = new URL('domain.ts', import.meta.url).href

/** Returns fields 14 to 17 of /proc/self/stat, counted after the name's bracket; 0 without such a file. */
export function cpuSeconds(): number {
  try {
    const stat = readFileSync('/proc/self/stat', 'latin1')
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
    return fields.slice(11, 15).reduce((sum, field) => sum + Number(field), 0) / PER_SECOND
  } catch {
    return 0
  }
}

// The runner reads its own time, without tap.
if (process.env.TAP) {
  registerHooks({
    resolve: (name, context, next) =>
      name === 'async-hook-domain' ? { url: DOMAIN, shortCircuit: true } : next(name, context),
  })
  process.on('exit', () => console.log(`# cpu ${process.argv[1]}: ${cpuSeconds()}`))
}
