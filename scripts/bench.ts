/**
 * `npm run bench -- <area> [seconds] [resources]`: compares the service with the physical limit in the same run.
 * Compare ratios: absolute values depend on the machine.
 */
import { agents } from './bench/agents.ts'
import { bots } from './bench/bots.ts'
import { crud } from './bench/crud.ts'
import { exports } from './bench/export.ts'
import { graphql } from './bench/graphql.ts'
import { imports } from './bench/import.ts'
import { large } from './bench/large.ts'
import type { Figure } from './bench/load.ts'
import { mixed } from './bench/mixed.ts'
import { crowds, roll } from './bench/projects.ts'
import { search } from './bench/search.ts'
import { type Stage, withStage } from './bench/stage.ts'

type Area = (stage: Stage, seconds: number, resources: number) => Promise<readonly Figure[]>

const areas: Readonly<Record<string, Area>> = {
  agents,
  bots,
  crowds,
  crud,
  export: exports,
  graphql,
  import: imports,
  large,
  mixed,
  roll,
  search,
}

const [area = '', seconds = '3', resources = area === 'large' ? '1000000' : '35000'] =
  process.argv.slice(2)
const run = areas[area]
if (run === undefined || !(Number(seconds) > 0) || !(Number(resources) > 0)) {
  console.error(
    `Usage: npm run bench -- <${Object.keys(areas).join('|')}> [seconds a round] [resources]`,
  )
  process.exit(1)
}
const figures = await withStage((stage) => run(stage, Number(seconds), Number(resources)))
const rows = figures.map(({ what, ours, limit = '', ratio = '', required = '' }) => [
  what,
  { ours, limit, ratio, required },
])
console.table(Object.fromEntries(rows))
