/** The Procfile says how a process is started; everything that starts one asks here. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'

const PROCFILE = join(import.meta.dirname, '..', 'Procfile')

/** Arguments for Node, to be run in the root of the repository. */
export function nodeArguments(process: 'web' | 'worker'): string[] {
  const line = readFileSync(PROCFILE, 'utf8')
    .split('\n')
    .find((text) => text.startsWith(`${process}: node `))
  if (line === undefined) throw new Error(`The Procfile starts no ${process} with node`)
  return line.split(' ').slice(2)
}
