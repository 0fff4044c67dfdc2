/** The lines of a part of an export that is organized by patients: what is in the compartment of one, then the next. */
import type { Principal } from '../../../access/principal.ts'
import { typeName } from '../../../fhir/definitions.ts'
import { bufferOf, type Slice, sliceOf } from '../../../platform/storage/storage.ts'
import type { Store } from '../../../store/rows/context.ts'
import { literal } from '../rows/filters.ts'
import { bytesOf, type ExportPart, type PlannedJob } from '../rows/jobs.ts'
import type { Reading } from '../rows/read.ts'
import { needsMeta, type Show, showOf } from '../rows/redact.ts'
import { rangeSql, type Selection, selectionOf } from '../rows/select.ts'
import { typeAtPlace } from './members.ts'

/** Takes a line with its place in the part, and with what the lines of its patient begin with. */
export type CompartmentSink = (
  place: Slice,
  line: Slice,
  header: Slice,
  isFirst: boolean,
) => Promise<void> | undefined

export interface CompartmentLines {
  readonly line: CompartmentSink
  /** Takes the row id of what cannot be read, and its type. */
  readonly bad: (id: Buffer, type: string) => Promise<void>
}

interface Shown {
  readonly selection: Selection
  readonly show: Show
}

/** Reads the blocks behind `part.after`, which is a place, while the bounds of the part are patients. */
export async function readCompartments(
  { store, principal, job, baseUrl, session }: Reading,
  part: ExportPart,
  { line, bad }: CompartmentLines,
): Promise<void> {
  const shown = await shownTypes(store, principal, job, { range: part, baseUrl })
  let header = NONE
  let patient = ''
  let isFirst = false
  await session.copy(readSql(job, part, shown), (fields) => {
    const [place, first, reference, type, id, content, metaExtension, ruling] = fields
    if (!place || !first || !reference || !type || !id) throw new Error('A row has no id')
    const name = bufferOf(reference).toString()
    if (name !== patient) {
      patient = name
      header = headerOf(name)
      isFirst = first.bytes[first.start] === 1
    }
    const number = type.bytes.readInt32BE(type.start)
    try {
      if (!content || !metaExtension) throw new SyntaxError('A row has no content')
      const { show } = shown.get(number) ?? {}
      if (show === undefined) throw new Error('A row has no type')
      const text = show(content, metaExtension, ruling?.bytes.readInt32BE(ruling.start))
      const wait = line(place, text, header, isFirst)
      isFirst = false
      return wait
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error
      return bad(Buffer.from(bufferOf(id)), typeName(number))
    }
  })
}

const NONE = sliceOf(Buffer.alloc(0))

function headerOf(reference: string): Slice {
  const parameter = [{ name: 'header', valueReference: { reference } }]
  return sliceOf(Buffer.from(JSON.stringify({ resourceType: 'Parameters', parameter })))
}

/** By the numbers of the types that are in the part. */
async function shownTypes(
  store: Store,
  principal: Principal,
  job: PlannedJob,
  { range: { low, high }, baseUrl }: { readonly range: ExportPart; readonly baseUrl: string },
): Promise<ReadonlyMap<number, Shown>> {
  const types = await store.connection.query<{ type: number }>({
    text: `select distinct ${typeAtPlace('c')} as type from export_compartment c where job = $1
      and ($2::uuid is null or patient > $2) and ($3::uuid is null or patient <= $3)`,
    values: [job.id, low ?? null, high ?? null],
  })
  const found = new Map<number, Shown>()
  for (const { type } of types) {
    const selection = await selectionOf(store, principal, typeName(type), job)
    if (selection === undefined) throw new Error('What is listed is not exported')
    found.set(type, { selection, show: showOf(selection, job.input.elements, baseUrl) })
  }
  return found
}

/**
 * Columns: place in the part, whether it is the first of its patient, reference of that, type, row id, content,
 * platform meta if it is needed, and which grant governs. A place stays what it is whoever reads the part.
 */
function readSql(job: PlannedJob, part: ExportPart, shown: ReadonlyMap<number, Shown>): string {
  const [one] = shown.values()
  if (one === undefined) return 'select null where false'
  const { scene, at } = one.selection
  const own = literal(job.id, 'uuid')
  const { low, high, after } = part
  const withMeta = [...shown].filter(([, { selection }]) => needsMeta(selection))
  const types = literal(
    withMeta.map(([type]) => type),
    'int[]',
  )
  const range = rangeSql('c.patient', { low, high }, literal).map((test) => `and ${test}`)
  const behind = after === undefined ? '' : `where l.n > ${literal(numberOf(after), 'bigint')}`
  // A resource in several arrays was changed while they were made.
  const lines = `select l.n, l.first, l.id, l.patient, l.place, l.ruling, m.reference, ${typeAtPlace('l')} as type
    from (select d.*, row_number() over w as n, lag(patient) over w is distinct from patient as first
      from (select distinct on (c.patient, c.place, i.id) c.patient, c.place, i.id, c.ruling
        from export_compartment c cross join lateral unnest(c.ids) i(id)
        where c.job = ${own} ${range.join(' ')}
        order by c.patient, c.place, i.id, c.ruling) d
      window w as (order by patient, place, id)) l
    cross join lateral (select m.reference from export_member m
      where m.job = ${own} and m.id = l.patient limit 1) m ${behind}`
  return `with x as (${lines})
    select lpad(to_hex(x.n), 32, '0')::uuid, x.first, x.reference, x.type, x.id, v.content,
      case when x.type = any(${types}) then v.meta_ext else '' end, x.ruling
    from x cross join lateral (select v.content, v.meta_ext from version v
      where v.project = ${literal(scene.project, 'int')} and v.type = x.type and v.id = x.id
        and v.lu <= ${literal(at, 'timestamptz')} order by v.ver desc limit 1) v
    where v.content is not null order by x.patient, x.place, x.id`
}

function numberOf(place: string): bigint {
  return bytesOf(place).readBigUInt64BE(8)
}
