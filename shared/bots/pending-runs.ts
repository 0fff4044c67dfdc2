/** The durable side of asynchronous bot runs: a row from acceptance until the AsyncJob is finished. */
import { RunLost } from '../errors.ts'
import type { Connection } from '../platform/postgres/statement.ts'

const FOREIGN_MS = 30 * 60_000

export interface PendingRun {
  readonly id: string
  /** Id of the Project its AsyncJob lives in. */
  readonly projectId: string
  /** The Redis that knows its job. */
  readonly home: string
  /** The job as JSON text; undefined for a run that must not be started a second time. */
  readonly job: string | undefined
}

/** A run without a worker. */
export interface LeftRun extends PendingRun {
  readonly hadEffect: boolean
}

export async function addPendingRun(database: Connection, run: PendingRun): Promise<void> {
  await database.query({
    name: 'pending-run-add',
    text: `insert into pending_run (id, project, home, job) values ($1, $2, $3, $4)
      on conflict do nothing`,
    values: [run.id, run.projectId, run.home, run.job ?? null],
  })
}

/** So long a worker has a run that it has said nothing about; shorter than the lock of its job. */
const HELD = "interval '10 s'"

export interface TakenRun {
  readonly taking: number
  /** 1-based, as the bot sees it. */
  readonly attempt: number
  /** An attempt before has perhaps changed something. */
  readonly hadEffect: boolean
}

/** Undefined while another worker has the run, unless that `isGone`, and once its AsyncJob is finished. */
export async function takePendingRun(
  database: Connection,
  id: string,
  isGone: boolean,
): Promise<TakenRun | undefined> {
  const [taken] = await database.query<TakenRun>({
    name: 'pending-run-take',
    text: `update pending_run set takes = takes + 1, held = clock_timestamp() + ${HELD}
      where id = $1 and ($2 or held is null or held < clock_timestamp())
      returning takes as taking, takes - returned as attempt, effect as "hadEffect"`,
    values: [id, isGone],
  })
  return taken
}

/** Says that a worker still has these runs; runs without a row are no loss. Answers those that it has lost. */
export async function holdPendingRuns(
  database: Connection,
  runs: readonly { readonly run: string; readonly taking: number }[],
): Promise<readonly string[]> {
  const lost = await database.query<{ id: string }>({
    name: 'pending-run-hold',
    isUpkeep: true,
    text: `with x as (select * from unnest($1::uuid[], $2::int[]) as x(id, taking)),
      held as (update pending_run p set held = clock_timestamp() + ${HELD} from x
        where p.id = x.id and p.takes = x.taking returning p.id)
      select id from x where taking > 0 and id not in (select id from held)`,
    values: [runs.map(({ run }) => run), runs.map(({ taking }) => taking)],
  })
  return lost.map(({ id }) => id)
}

/** Gives a run back that has not begun, or, `isAnew`, is to be made again whatever it has done. */
export async function releasePendingRun(
  database: Connection,
  id: string,
  taking: number,
  isAnew: boolean,
): Promise<void> {
  await database.query({
    name: 'pending-run-release',
    text: `update pending_run
      set held = null, effect = effect and not $3, returned = returned + (not $3)::int
      where id = $1 and takes = $2`,
    values: [id, taking, isAnew],
  })
}

/** Notes that the run is about to change something. Errors: RunLost. */
export async function notePendingEffect(
  database: Connection,
  id: string,
  taking: number,
): Promise<void> {
  const rows = await database.query({
    name: 'pending-run-effect',
    text: 'update pending_run set effect = true where id = $1 and takes = $2 returning 1 as noted',
    values: [id, taking],
  })
  if (rows.length === 0) throw new RunLost()
}

export async function removePendingRun(database: Connection, id: string): Promise<void> {
  await database.query({
    name: 'pending-run-remove',
    text: 'delete from pending_run where id = $1',
    values: [id],
  })
}

interface PendingPage {
  readonly olderThanMs: number
  readonly after: string
  readonly count: number
}

/**
 * Runs accepted longer ago than `olderThanMs` that no worker has, in the order of their ids, those after `after`. Runs
 * of another Redis come much later: while a deployment moves from one to the other, workers of both
 * see this table.
 */
export async function pendingRuns(
  database: Connection,
  home: string,
  { olderThanMs, after, count }: PendingPage,
): Promise<readonly LeftRun[]> {
  const rows = await database.query<{
    id: string
    project: string
    home: string
    job: string | null
    hadEffect: boolean
  }>({
    name: 'pending-runs',
    text: `
      select id, project, home, job, effect as "hadEffect" from pending_run
      where id > $1::uuid and (held is null or held < clock_timestamp())
        and added < clock_timestamp() - case when home = $2 then $3::float8 else $4::float8 end * interval '1 ms'
      order by id limit $5`,
    values: [after, home, olderThanMs, FOREIGN_MS, count],
  })
  return rows.map(({ project, job, ...row }) => ({
    ...row,
    projectId: project,
    job: job ?? undefined,
  }))
}
