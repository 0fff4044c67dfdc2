/** The lines of a part of an export, in the order of their row ids. */
import type { Principal } from '../../../access/principal.ts'
import { typeNumber } from '../../../fhir/definitions.ts'
import type { CopySession, RowSink } from '../../../platform/postgres/copy.ts'
import type { Connection } from '../../../platform/postgres/statement.ts'
import { bufferOf, type Slice, sliceOf } from '../../../platform/storage/storage.ts'
import type { Store } from '../../../store/rows/context.ts'
import { provenanceChoice, provenanceFilter, provenanceLines } from '../patients/provenance.ts'
import { literal } from './filters.ts'
import { type ExportPart, type Lines, type PlannedJob, type Range, ROW_ID_BYTES } from './jobs.ts'
import { listedIdsSql, listedSql, listedWithFew } from './list.ts'
import { needsMeta, type Show, showOf } from './redact.ts'
import {
  changedRows,
  copySql,
  IN_COMPARTMENT,
  rangeSql,
  type Selection,
  selectionOf,
} from './select.ts'

/** A read of an export: its job, its member, and how its lines are shown. */
export interface Reading {
  readonly store: Store
  readonly principal: Principal
  readonly job: PlannedJob
  readonly baseUrl: string
  readonly session: CopySession
}

export type TypedPart = Pick<ExportPart, 'low' | 'high' | 'after'> & { readonly type: string }

/** Reads the rows behind `part.after`. */
export async function readPart(reading: Reading, part: TypedPart, lines: Lines): Promise<void> {
  const { store, principal, job } = reading
  const selection = await selectionOf(store, principal, part.type, job)
  if (selection !== undefined) await readType(reading, selection, part, lines)
}

export async function readType(
  { store, principal, job, baseUrl, session }: Reading,
  selection: Selection,
  part: TypedPart,
  lines: Lines,
): Promise<void> {
  const show = showOf(selection, job.input.elements, baseUrl)
  const choice = part.type === 'Provenance' ? provenanceChoice(job.input) : undefined
  const all: Range = { low: part.after ?? part.low, high: part.high }
  const hasMeta = needsMeta(selection)
  const plain = choice ? undefined : await plainSql(session, selection, all, hasMeta)
  if (plain !== undefined) {
    const { take, end } = newestLines(show, lines)
    const { sql, isLarge } = plain
    await (isLarge ? session.copyInOrder([{ sql, sink: take }]) : session.copy(sql, take))
    return end()
  }
  const { line, bad } = lines
  const batches =
    choice &&
    provenanceLines(provenanceFilter(store, principal, job, { own: selection, choice }), line)
  let { low } = all
  let high: string | undefined
  do {
    const range = { low, high: part.high }
    const read = await session.snapshot(async () => {
      const changed = await changedRows(store, session, selection, range)
      const sql = copySql(selection, { low, high: changed.high }, changed.rows, hasMeta)
      await session.copy(sql, ([rowId, content, metaExtension, ruling]) => {
        if (!rowId) throw new Error('A row has no id')
        try {
          if (!content || !metaExtension) throw new SyntaxError('A row has no content')
          const shown = show(content, metaExtension, ruling?.bytes.readInt32BE(ruling.start))
          return batches === undefined ? line(rowId, shown) : batches.add(rowId, content, shown)
        } catch (error) {
          if (error instanceof SyntaxError) return bad(Buffer.from(bufferOf(rowId)))
          throw error
        }
      })
      return changed
    })
    high = read.high
    low = high
  } while (high !== part.high)
  await batches?.end()
}

/** The last version of each resource, from versions in the order of row ids and of their numbers. */
export interface NewestLines {
  /** A version without content takes the resource out. */
  readonly take: RowSink
  end(): Promise<void>
}

/** Platform meta of a row that was read without it. */
const NONE = sliceOf(Buffer.alloc(0))

export function newestLines(show: Show, { line, undo, bad }: Lines): NewestLines {
  const last = Buffer.alloc(ROW_ID_BYTES)
  /** The result so far. */
  let isShown = false
  let isBad = false

  /** False when it is the same. */
  function isNext({ bytes, start }: Slice): boolean {
    let place = ROW_ID_BYTES - 1
    while (place >= 0 && bytes[start + place] === last[place]) place -= 1
    return place >= 0
  }

  /** An unreadable version is reported when no later version has come. */
  function leave(id: Slice): Promise<void> | undefined {
    const reported = isBad ? bad(Buffer.from(last)) : undefined
    for (let place = 0; place < ROW_ID_BYTES; place++) last[place] = id.bytes[id.start + place] ?? 0
    return reported
  }

  return {
    take([id, content, metaExtension = NONE]) {
      if (!id || !metaExtension) throw new Error('A row has no id')
      let reported: Promise<void> | undefined
      if (isNext(id)) reported = leave(id)
      else if (isShown) undo()
      isShown = false
      isBad = false
      if (!content) return reported
      try {
        const wait = line(id, show(content, metaExtension, undefined))
        isShown = true
        return reported && wait ? reported.then(() => wait) : (reported ?? wait)
      } catch (error) {
        if (!(error instanceof SyntaxError)) throw error
        isBad = true
        return reported
      }
    },
    async end() {
      if (isBad) await bad(last)
    },
  }
}

export interface SharedLines extends Lines {
  /** The next lines have this type. */
  readonly turn: (type: string) => void
}

/** Reads the rows behind `part.after` of `part.type`. */
export async function readShared(
  reading: Reading,
  { types, type: current, after }: Pick<ExportPart, 'types' | 'type' | 'after'>,
  lines: SharedLines,
): Promise<void> {
  const { store, principal, job } = reading
  const afterIn = (type: string | undefined) => (type === current ? after : undefined)
  let together: Selection[] = []
  const flush = async () => {
    const some = together
    together = []
    if (some.length > 0) await readTogether(reading, some, afterIn(some[0]?.scene.type), lines)
  }
  for (const type of types.slice(Math.max(0, types.indexOf(current ?? '')))) {
    const selection = await selectionOf(store, principal, type, job)
    if (selection === undefined) continue
    if (isListedAlone(selection)) {
      together.push(selection)
      continue
    }
    await flush()
    lines.turn(type)
    const part = { type, low: undefined, high: undefined, after: afterIn(type) }
    await readType(reading, selection, part, lines)
  }
  await flush()
}

async function readTogether(
  { job, baseUrl, session }: Reading,
  selections: readonly Selection[],
  after: string | undefined,
  lines: SharedLines,
): Promise<void> {
  const queries = await listedQueries(
    session,
    selections.map((selection, i) => ({
      selection,
      range: { low: i === 0 ? after : undefined, high: undefined },
      needsMeta: needsMeta(selection),
    })),
  )
  let last: NewestLines | undefined
  const leave = () => last?.end()
  const copies = selections.map((selection, i) => {
    const own = newestLines(showOf(selection, job.input.elements, baseUrl), lines)
    const sink: RowSink = (fields) => {
      if (last === own) return own.take(fields)
      // Issues of one type are reported before the next type begins.
      const reported = leave()
      lines.turn(selection.scene.type)
      last = own
      const wait = own.take(fields)
      return reported && wait ? reported.then(() => wait) : (reported ?? wait)
    }
    return { sql: queries[i] ?? '', sink }
  })
  await session.copyInOrder(copies)
  await leave()
}

// Versions as of the time of an export that are read without their rows, by one statement: where nothing
// tests the rows, the versions alone decide what is exported. It is the newest of each that was written by
// then, unless that is a deletion.

/**
 * A MiB takes PostgreSQL 0.6 ms when all versions are read, and 3.7 ms when each that is exported is looked
 * up; one that is read in vain costs the worker as much as PostgreSQL again. So many versions of so many rows,
 * the first and the last ones, stand for all.
 */
const MOST_VERSIONS = 625
const SAMPLE_ROWS = 250
/**
 * So few rows are found by their type and sorted. In the order of ids PostgreSQL goes through those of all types,
 * which took 4.4 ms for 36 rows among 70,000, and takes 0.6; where there are more rows it may be a fiftieth of them.
 */
const SORTED_ROWS = `(select greatest(2000, least(20000, reltuples / 50))::int from pg_class
  where oid = 'resource'::regclass)`
const ENDS = [
  { order: 'asc', test: '<=', end: 'ffffffff-ffff-ffff-ffff-ffffffffffff' },
  { order: 'desc', test: '>=', end: '00000000-0000-0000-0000-000000000000' },
]

interface PlainQuery {
  readonly sql: string
  /** Larger than what is sorted without a thought: its order is to be that of an index. */
  readonly isLarge: boolean
}

/**
 * Builds the query for COPY, with the columns of `copySql` that are needed: in the order of row ids, and of their
 * versions, of which the last one counts; without content it takes the resource out. Undefined when the rows are
 * tested, or when too many versions are not exported.
 */
async function plainSql(
  connection: Connection,
  selection: Selection,
  range: Range,
  needsMeta: boolean,
): Promise<PlainQuery | undefined> {
  const { reach, at, since } = selection
  if (isTested(selection)) return undefined
  if (reach === 'listed') {
    const [sql = ''] = await listedQueries(connection, [{ selection, range, needsMeta }])
    return { sql, isLarge: true }
  }
  // Little was written since, mostly, and it is found by its time.
  if (since !== undefined) return undefined
  const { isFew, isLarge } = await sizesOf(connection, selection, range)
  if (!isFew) return undefined
  const ofPatients = `case when ${IN_COMPARTMENT} then v.content end as content`
  const sql = `select v.id, ${reach === 'patients' ? ofPatients : 'v.content'}${metaOf(needsMeta)}
    from version v where ${ofType('v', selection, range)} and v.lu <= ${literal(at, 'timestamptz')}
    order by v.id, v.ver`
  return { sql, isLarge }
}

function isTested({ scene, ruled, filter, reach, isPast }: Selection): boolean {
  const hasTests = scene.visible.length > 0 || ruled !== undefined || filter !== undefined
  return hasTests || (reach === 'listed' && isPast)
}

/** Whether what was listed of the type is read by one statement. */
function isListedAlone(selection: Selection): boolean {
  return selection.reach === 'listed' && !isTested(selection)
}

/** The rows of a type that are read, behind `range.low`. */
interface ListedType {
  readonly selection: Selection
  readonly range: Range
  readonly needsMeta: boolean
}

/** The same of what an export has listed of each of the types: the plan has listed what was changed meanwhile, too. */
async function listedQueries(
  connection: Connection,
  types: readonly ListedType[],
): Promise<readonly string[]> {
  const numbers = types.map(({ selection }) => typeNumber(selection.scene.type))
  const [job = ''] = types.map(({ selection }) => selection.job)
  const few = await listedWithFew(connection, job, numbers, MOST_VERSIONS / SAMPLE_ROWS)
  return types.map(({ selection, range, needsMeta }) => {
    const { scene, at, since } = selection
    const type = typeNumber(scene.type)
    const meta = metaOf(needsMeta)
    const written = [
      `${ofType('v', selection)} and v.lu <= ${literal(at, 'timestamptz')}`,
      ...(since === undefined ? [] : [`v.lu > ${literal(since, 'timestamptz')}`]),
    ].join(' and ')
    if (few.has(type)) {
      return `select v.id, v.content${meta} from version v where ${written}
        and v.id = any(array(${listedSql(job, type, range, literal)})) order by v.id, v.ver`
    }
    return `select e.id, v.content${meta}
      from (${listedIdsSql(job, type, range, literal)} offset 0) e cross join lateral
        (select v.* from version v where ${written} and v.id = e.id order by v.ver desc limit 1) v
      order by e.id`
  })
}

/** The column is left out where nobody needs it. */
function metaOf(needsMeta: boolean): string {
  return needsMeta ? ', v.meta_ext' : ''
}

interface Sizes {
  readonly isFew: boolean
  readonly isLarge: boolean
}

/** Whether the versions are few for their rows, and the rows many. */
async function sizesOf(connection: Connection, selection: Selection, range: Range): Promise<Sizes> {
  const counts = ENDS.map(({ order, test, end }) => {
    const last = `select r.id from resource r where ${ofType('r', selection, range)}
      order by r.id ${order} offset ${SAMPLE_ROWS - 1} limit 1`
    return `select count(*) as versions from (select 1 from version v
      where ${ofType('v', selection, range)}
        and v.id ${test} coalesce((${last}), ${literal(end, 'uuid')}) limit ${MOST_VERSIONS + 1}) v`
  })
  const [found] = await connection.query<Sizes>({
    text: `select max(versions) <= ${MOST_VERSIONS} as "isFew",
        exists (select 1 from resource r where ${ofType('r', selection, range)}
          order by r.id offset ${SORTED_ROWS}) as "isLarge"
      from (${counts.join(' union all ')}) c`,
    values: [],
  })
  return found ?? { isFew: false, isLarge: true }
}

function ofType(table: string, { scene }: Selection, range?: Range): string {
  const tests = [
    `${table}.project = ${literal(scene.project, 'int')}`,
    `${table}.type = ${literal(typeNumber(scene.type), 'smallint')}`,
    ...(range === undefined ? [] : rangeSql(`${table}.id`, range, literal)),
  ]
  return tests.join(' and ')
}
