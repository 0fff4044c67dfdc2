/** Writes the lines of an export part: one type, several types, or listed rows. */
import { decideContents } from '../../access/decisions/decide.ts'
import type { Principal } from '../../access/principal.ts'
import { uuidToBytes } from '../../core/uuid.ts'
import { typeName, typeNumber } from '../../fhir/definitions.ts'
import { type Slice, sliceToBuffer, toSlice } from '../../outbound/storage/storage.ts'
import { type CopySession, literal, type RowSink } from '../../postgres/copy.ts'
import { type Bind, binder } from '../../postgres/statement.ts'
import type { StoreContext } from '../../store/rows/context.ts'
import { contentId } from '../../store/rows/rows.ts'
import type { ExportPart, LineWriter, PlannedJob, Range } from './jobs.ts'
import { provenanceChoice, provenanceLines } from './provenance.ts'
import { compileRedaction, type Redaction } from './redact.ts'
import {
  changedRows,
  copySql,
  exportRowScope,
  formerVersions,
  isListed,
  rangeSql,
  type Selection,
  selectType,
  stateTime,
  typeAtPlace,
} from './select.ts'

interface Reading {
  readonly store: StoreContext
  readonly principal: Principal
  readonly job: PlannedJob
  readonly baseUrl: string
  readonly session: CopySession
}

export async function readPart(
  reading: Reading,
  part: ExportPart,
  writer: LineWriter,
): Promise<void> {
  const { store, principal, job } = reading
  if (isListed(job.input)) return readListed(reading, part, writer)
  const { kind, type: current = '', after, high } = part
  const types = kind === 'shared' ? part.types : [current]
  for (const type of types.slice(Math.max(0, types.indexOf(current)))) {
    const selection = await selectType(store, principal, type, job)
    if (selection === undefined) continue
    writer.turn(type)
    const low = (type === current ? after : undefined) ?? part.low
    await readType(reading, selection, { low, high }, writer)
  }
}

async function readType(
  { store, principal, job, baseUrl, session }: Reading,
  selection: Selection,
  whole: Range,
  writer: LineWriter,
): Promise<void> {
  const redaction = compileRedaction(selection, job.input.elements, baseUrl)
  const isChosen = redaction.type === 'Provenance' && provenanceChoice(job.input) !== undefined
  const provenance = isChosen
    ? provenanceLines(store, principal, job, { about: selection, writer })
    : undefined
  const write: WriteRow = provenance?.add ?? ((id, line) => writer.add(id, line))
  const sink = rowSink(writer, () => redaction, write)
  let { low } = whole
  let high: string | undefined
  do {
    const range = { low, high: whole.high }
    high = await session.snapshot(async () => {
      const changed = await changedRows(store, session, selection, range)
      const read = { low, high: changed.high }
      await session.copy(copySql(selection, read, changed.rows, redaction.needsMeta), sink)
      return changed.high
    })
    low = high
  } while (high !== whole.high)
  await provenance?.end()
}

type Fields = Parameters<RowSink>[0]
type WriteRow = (id: Slice, line: Slice, fields: Fields) => Promise<void> | undefined

/** Takes rows of id, content, platform meta, governing grant and further fields. Reports those that cannot be read. */
function rowSink(
  writer: LineWriter,
  redactionFor: (fields: Fields) => Redaction,
  write: WriteRow,
): RowSink {
  return (fields) => {
    const [id, content, metaExtension, ruling] = fields
    if (!id) throw new Error('A row has no id')
    const { type, show } = redactionFor(fields)
    try {
      if (!content || !metaExtension) throw new SyntaxError('A row has no content')
      const line = show(content, metaExtension, ruling?.bytes.readInt32BE(ruling.start))
      return write(id, line, fields)
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error
      return writer.bad(Buffer.from(sliceToBuffer(id)), type)
    }
  }
}

/** Writes listed rows by type and id, or patient by patient; then `part.after` is a position in the part. */
async function readListed(reading: Reading, part: ExportPart, writer: LineWriter): Promise<void> {
  const redactions = await listedRedactions(reading, part)
  let patient = ''
  let header: Slice | undefined
  let isFirst = false
  const redactionFor = ([, , , , type, , first, reference]: Fields): Redaction => {
    const redaction = type && redactions.get(type.bytes.readInt32BE(type.start))
    if (!redaction) throw new Error('A row has no type')
    const name = reference && sliceToBuffer(reference).toString()
    if (!name) writer.turn(redaction.type)
    else if (name !== patient) {
      patient = name
      header = toHeader(name)
      isFirst = first?.bytes[first.start] === 1
    }
    return redaction
  }
  const write: WriteRow = (id, line, [, , , , , position]) => {
    const wait = writer.add(position ?? id, line, header, isFirst)
    isFirst = false
    return wait
  }
  const sink = rowSink(writer, redactionFor, write)
  await reading.session.copy(listedSql(reading, part, redactions), sink)
}

function toHeader(reference: string): Slice {
  const parameter = [{ name: 'header', valueReference: { reference } }]
  return toSlice(Buffer.from(JSON.stringify({ resourceType: 'Parameters', parameter })))
}

async function listedRedactions(
  { store, principal, job, baseUrl }: Reading,
  part: ExportPart,
): Promise<ReadonlyMap<number, Redaction>> {
  const { values, bind } = binder()
  const types = await store.connection.query<{ type: number }>({
    text: `select distinct ${typeAtPlace('c')} as type from export_compartment c
      where ${listTests(job, part, bind)}`,
    values,
  })
  const found = new Map<number, Redaction>()
  for (const { type } of types) {
    const selection = await selectType(store, principal, typeName(type), job)
    if (selection === undefined) throw new Error('The listed resources are not exported')
    found.set(type, compileRedaction(selection, job.input.elements, baseUrl))
  }
  return found
}

/** SQL: the arrays of a part. */
function listTests(job: PlannedJob, { low, high, types }: ExportPart, bind: Bind): string {
  return [
    `c.job = ${bind(job.id, 'uuid')}`,
    ...rangeSql('c.patient', { low, high }, bind),
    ...(types.length === 0
      ? []
      : [`${typeAtPlace('c')} = any(${bind(types.map(typeNumber), 'int[]')})`]),
  ].join(' and ')
}

/** The order is the same for every reader of the part. A row in several arrays is read once. */
function listedSql(
  { principal, job }: Reading,
  part: ExportPart,
  redactions: ReadonlyMap<number, Redaction>,
): string {
  const withMeta = [...redactions].flatMap(([type, { needsMeta }]) => (needsMeta ? type : []))
  const { lines, more, order } =
    job.input.organizedBy === undefined ? linesByType(job, part) : linesByPatient(job, part)
  return `with x as (${lines})
    select x.id, v.content, case when x.type = any(${literal(withMeta, 'int[]')})
      then v.meta_ext else '' end, x.ruling, x.type${more}
    from x cross join lateral (select v.content, v.meta_ext from version v
      where v.project = ${literal(principal.project.number, 'int')} and v.type = x.type and v.id = x.id
        and v.lu <= ${literal(stateTime(job.at, job.input.until), 'timestamptz')}
      order by v.ver desc limit 1) v
    where v.content is not null order by ${order}`
}

function linesByType(job: PlannedJob, part: ExportPart) {
  const { type, after } = part
  const rest =
    after === undefined || type === undefined
      ? ''
      : `and (${typeAtPlace('c')}, i.id) > (${typeNumber(type)}, ${literal(after, 'uuid')})`
  const lines = `select distinct on (type, id) ${typeAtPlace('c')} as type, i.id, c.ruling
    from export_compartment c cross join lateral unnest(c.ids) i(id)
    where ${listTests(job, part, literal)} ${rest} order by type, id, ruling`
  return { lines, more: '', order: 'x.type, x.id' }
}

function linesByPatient(job: PlannedJob, part: ExportPart) {
  const { after } = part
  const rest =
    after === undefined
      ? ''
      : `where l.n > ${literal(uuidToBytes(after).readBigUInt64BE(8), 'bigint')}`
  const lines = `select l.n, l.first, l.id, l.patient, l.place, l.ruling, m.reference, ${typeAtPlace('l')} as type
    from (select d.*, row_number() over w as n, lag(patient) over w is distinct from patient as first
      from (select distinct on (c.patient, c.place, i.id) c.patient, c.place, i.id, c.ruling
        from export_compartment c cross join lateral unnest(c.ids) i(id)
        where ${listTests(job, part, literal)}
        order by c.patient, c.place, i.id, c.ruling) d
      window w as (order by patient, place, id)) l
    cross join lateral (select m.reference from export_member m
      where m.job = ${literal(job.id, 'uuid')} and m.id = l.patient limit 1) m ${rest}`
  const more = ", lpad(to_hex(x.n), 32, '0')::uuid, x.first, x.reference"
  return { lines, more, order: 'x.patient, x.place, x.id' }
}

const DELETIONS_A_LINE = 100

/**
 * Writes Bundles of DELETE requests; a resource's last content decides whether the member may see its deletion.
 * https://hl7.org/fhir/uv/bulkdata/STU2/export.html#deleted-array
 */
export async function readDeleted(
  reading: Pick<Reading, 'store' | 'principal' | 'job'>,
  { type, after }: { readonly type: string; readonly after: string | undefined },
  writer: LineWriter,
): Promise<void> {
  let page: Deletions = { ids: [], last: after, hasMore: true }
  while (page.hasMore) {
    page = await readDeletions(reading, type, page.last)
    if (page.ids.length === 0 || page.last === undefined) continue
    const entry = page.ids.map((id) => ({ request: { method: 'DELETE', url: `${type}/${id}` } }))
    const bundle = JSON.stringify({ resourceType: 'Bundle', type: 'transaction', entry })
    await writer.add(toSlice(uuidToBytes(page.last)), toSlice(Buffer.from(bundle)))
  }
}

interface Deletions {
  readonly ids: readonly string[]
  readonly last: string | undefined
  readonly hasMore: boolean
}

/** Returns the next deletions of one type after a row id. One statement, plus one if only PostgreSQL can decide. */
async function readDeletions(
  { store, principal, job: { id, at, input } }: Pick<Reading, 'store' | 'principal' | 'job'>,
  type: string,
  after: string | undefined,
): Promise<Deletions> {
  const reach = exportRowScope(input)
  const former = { job: id, principal, type, reach, members: 'true', most: DELETIONS_A_LINE }
  const range = { low: after, high: undefined }
  const rows = await formerVersions(store.connection, former, range, (bind, project) => {
    const time = bind(stateTime(at, input.until), 'timestamptz')
    return `n.content is null and n.lu > ${bind(input.since, 'timestamptz')} and n.lu <= ${time}
      and not exists (select 1 from version o where o.project = ${project} and o.type = n.type
        and o.id = n.id and o.ver = n.ver + 1 and o.lu <= ${time})`
  })
  const decisions = await decideContents(store, principal, ['search'], rows)
  const seen = rows.filter((_, i) => decisions[i]?.search !== undefined)
  return {
    ids: seen.map(({ content }) => contentId(content ?? '')),
    last: rows.at(-1)?.id,
    hasMore: rows.length === DELETIONS_A_LINE,
  }
}
