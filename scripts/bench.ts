/**
 * `npm run bench -- <area> [seconds] [resources]`: compares the service with the physical limit in the same run.
 * Areas: bots, crowds, crud, export, graphql, import, search. Compare ratios: absolute values depend on the machine.
 */
import { bots } from './bench/bots.ts'
import { crowds } from './bench/crowds.ts'
import { crud } from './bench/crud.ts'
import { exports } from './bench/export.ts'
import { graphql } from './bench/graphql.ts'
import { imports } from './bench/import.ts'
import { search } from './bench/search.ts'

/** One line of a bench's table. `required`: the target ratio of the design, if any. */
export interface Figure {
  readonly what: string
  readonly ours: string
  readonly limit: string
  readonly ratio: string
  readonly required: string
}

const areas: Readonly<
  Record<string, (seconds: number, resources: number) => Promise<readonly Figure[]>>
> = {
  bots,
  crowds,
  crud,
  export: exports,
  graphql,
  import: imports,
  search,
}

const [area = '', seconds = '3', resources = '35000'] = process.argv.slice(2)
const run = areas[area]
if (run === undefined || !(Number(seconds) > 0) || !(Number(resources) > 0)) {
  console.error(
    `Usage: npm run bench -- <${Object.keys(areas).join('|')}> [seconds a round] [resources]`,
  )
  process.exit(1)
}
const figures = await run(Number(seconds), Number(resources))
console.table(Object.fromEntries(figures.map(({ what, ...figure }) => [what, figure] as const)))
