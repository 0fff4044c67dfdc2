/** The scripts of libraries as executors get them, linked once a worker. */
import { libraryFile } from '../../../shared/bots/libraries/table.ts'
import { link } from './link.ts'

const sources = new Map<string, string>()

/** The script of the library; see link.ts. */
export function librarySource(name: string): string {
  const source = sources.get(name) ?? link(libraryFile(name))
  sources.set(name, source)
  return source
}
