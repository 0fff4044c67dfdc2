/** The files that the rules apply to. */
import { execFileSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

const ROOT = join(import.meta.dirname, '../..')
const FILES =
  /^(?:(?:docs|examples|scripts|server|shared|test|worker)\/.*\.(?:[cm]?[jt]s|tsx|md)|[A-Z]+\.md)$/
const EXCLUDED = /(?:^|\/)data\/|^scripts\/lint\//

export interface Source {
  /** Relative to the root of the repository. */
  readonly path: string
  readonly text: string
}

/** Returns code and pages, without generated data and these rules. */
export function readSources(): readonly Source[] {
  const args = ['ls-files', '--cached', '--others', '--exclude-standard', '-z']
  const paths = execFileSync('git', args, { cwd: ROOT, encoding: 'utf8' }).split('\0')
  return paths
    .filter((path) => FILES.test(path) && !EXCLUDED.test(path) && existsSync(join(ROOT, path)))
    .sort()
    .map((path) => ({ path, text: readFileSync(join(ROOT, path), 'utf8') }))
}
