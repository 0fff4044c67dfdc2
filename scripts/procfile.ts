/** Reads the Procfile, the only source of process commands. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'

const PROCFILE = join(import.meta.dirname, '..', 'Procfile')

/** Returns arguments for Node, run in the repository root. */
export function nodeArguments(process: 'web' | 'worker'): string[] {
  const line = readFileSync(PROCFILE, 'utf8')
    .split('\n')
    .find((text) => text.startsWith(`${process}: node `))
  if (line === undefined) throw new Error(`The Procfile starts no ${process} with node`)
  return line.split(' ').slice(2)
}
