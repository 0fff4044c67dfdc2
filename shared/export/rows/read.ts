/** Writes the lines of an export part: one type, several types, or patient compartments. */
import type { Principal } from '../../access/principal.ts'
import { typeName } from '../../fhir/definitions.ts'
import { type Slice, sliceToBuffer, toSlice } from '../../outbound/storage/storage.ts'
import { type CopySession, literal, type RowSink } from '../../postgres/copy.ts'
import type { StoreContext } from '../../store/rows/context.ts'
import {
  type ExportPart,
  hasType,
  type LineWriter,
  type PlannedJob,
  ROW_ID_BYTES,
  type TypedPart,
  uuidFromBytes,
  uuidToBytes,
} from './jobs.ts'
import { typeAtPlace } from './list.ts'
import { isListedAlone, listedQueries, plainQuery } from './plain.ts'
import { type ProvenanceFilter, provenanceChoice, provenanceFilter } from './provenance.ts'
import { compileRedaction, needsMeta, type RedactRow } from './redact.ts'
import { changedRows, copySql, rangeSql, type Selection, selectType } from './select.ts'

export interface Reading {
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
  if (reading.job.input.organizedBy !== undefined) return readCompartments(reading, part, writer)
  if (part.kind === 'shared') return readShared(reading, part, writer)
  if (!hasType(part)) throw new Error('A part of an export has no type')
  const selection = await selectType(reading.store, reading.principal, part.type, reading.job)
  if (selection !== undefined) await readType(reading, selection, part, writer)
}

async function readType(
  { store, principal, job, baseUrl, session }: Reading,
  selection: Selection,
  part: TypedPart,
  writer: LineWriter,
): Promise<void> {
  const show = compileRedaction(selection, job.input.elements, baseUrl)
  const isChosen = part.type === 'Provenance' && provenanceChoice(job.input) !== undefined
  const hasMeta = needsMeta(selection)
  let low = part.after ?? part.low
  const plain = isChosen
    ? undefined
    : await plainQuery(session, selection, { low, high: part.high })
  if (plain !== undefined) {
    const { take, end } = newestLines(show, writer)
    const { sql, isLarge } = plain
    await (isLarge ? session.copyInOrder([{ sql, sink: take }]) : session.copy(sql, take))
    return end()
  }
  const provenance = isChosen
    ? provenanceLines(provenanceFilter(store, principal, job, selection), writer)
    : undefined
  const sink: RowSink = ([rowId, content, metaExtension, ruling]) => {
    if (!rowId) throw new Error('A row has no id')
    try {
      if (!content || !metaExtension) throw new SyntaxError('A row has no content')
      const shown = show(content, metaExtension, ruling?.bytes.readInt32BE(ruling.start))
      return provenance ? provenance.add(rowId, content, shown) : writer.add(rowId, shown)
    } catch (error) {
      if (error instanceof SyntaxError) return writer.bad(Buffer.from(sliceToBuffer(rowId)))
      throw error
    }
  }
  let high: string | undefined
  do {
    const range = { low, high: part.high }
    high = await session.snapshot(async () => {
      const changed = await changedRows(store, session, selection, range)
      await session.copy(
        copySql(selection, { low, high: changed.high }, changed.rows, hasMeta),
        sink,
      )
      return changed.high
    })
    low = high
  } while (high !== part.high)
  await provenance?.end()
}

const PROVENANCE_AT_ONCE = 1000

/** Writes the exported Provenance in batches and in order. */
function provenanceLines(filter: ProvenanceFilter, writer: LineWriter) {
  let batch: { readonly id: Buffer; readonly content: string; readonly shown: Buffer }[] = []
  let before = Promise.resolve()
  const flush = (): Promise<void> => {
    const rows = batch
    batch = []
    before = before.then(async () => {
      const going = await filter(
        rows.map(({ id, content }) => ({ id: uuidFromBytes(id), content })),
      )
      for (const { id, shown } of rows) {
        if (going.has(uuidFromBytes(id))) await writer.add(toSlice(id), toSlice(shown))
      }
    })
    return before
  }
  return {
    add(id: Slice, content: Slice, shown: Slice): Promise<void> | undefined {
      const text = sliceToBuffer(content).toString()
      batch.push({
        id: Buffer.from(sliceToBuffer(id)),
        content: text,
        shown: Buffer.from(sliceToBuffer(shown)),
      })
      return batch.length < PROVENANCE_AT_ONCE ? undefined : flush()
    },
    end: flush,
  }
}

/** Keeps the last version of each resource; versions arrive ordered by row id and number. */
interface NewestLines {
  /** A version without content takes the resource out. */
  readonly take: RowSink
  end(): Promise<void>
}

/** Platform meta of a row that was read without it. */
const EMPTY = toSlice(Buffer.alloc(0))

export function newestLines(
  show: RedactRow,
  writer: Pick<LineWriter, 'add' | 'undo' | 'bad'>,
): NewestLines {
  const last = Buffer.alloc(ROW_ID_BYTES)
  let isShown = false
  let isBad = false

  /** False for the same resource. */
  function isNext({ bytes, start }: Slice): boolean {
    let place = ROW_ID_BYTES - 1
    while (place >= 0 && bytes[start + place] === last[place]) place -= 1
    return place >= 0
  }

  function leave(id: Slice): Promise<void> | undefined {
    const reported = isBad ? writer.bad(Buffer.from(last)) : undefined
    for (let place = 0; place < ROW_ID_BYTES; place++) last[place] = id.bytes[id.start + place] ?? 0
    return reported
  }

  return {
    take([id, content, metaExtension = EMPTY]) {
      if (!id || !metaExtension) throw new Error('A row has no id')
      let reported: Promise<void> | undefined
      if (isNext(id)) reported = leave(id)
      else if (isShown) writer.undo()
      isShown = false
      isBad = false
      if (!content) return reported
      try {
        const wait = writer.add(id, show(content, metaExtension, undefined))
        isShown = true
        return reported && wait ? reported.then(() => wait) : (reported ?? wait)
      } catch (error) {
        if (!(error instanceof SyntaxError)) throw error
        isBad = true
        return reported
      }
    },
    async end() {
      if (isBad) await writer.bad(last)
    },
  }
}

async function readShared(
  reading: Reading,
  { types, type: current, after }: Pick<ExportPart, 'types' | 'type' | 'after'>,
  writer: LineWriter,
): Promise<void> {
  const { store, principal, job } = reading
  const afterIn = (type: string | undefined) => (type === current ? after : undefined)
  let together: Selection[] = []
  const flush = async () => {
    const some = together
    together = []
    if (some.length > 0) await readTogether(reading, some, afterIn(some[0]?.scene.type), writer)
  }
  for (const type of types.slice(Math.max(0, types.indexOf(current ?? '')))) {
    const selection = await selectType(store, principal, type, job)
    if (selection === undefined) continue
    if (isListedAlone(selection)) {
      together.push(selection)
      continue
    }
    await flush()
    writer.turn(type)
    const part = { type, low: undefined, high: undefined, after: afterIn(type) }
    await readType(reading, selection, part, writer)
  }
  await flush()
}

async function readTogether(
  { job, baseUrl, session }: Reading,
  selections: readonly Selection[],
  after: string | undefined,
  writer: LineWriter,
): Promise<void> {
  const ranges = selections.map((selection, i) => {
    return { selection, range: { low: i === 0 ? after : undefined, high: undefined } }
  })
  const queries = await listedQueries(session, ranges)
  let last: NewestLines | undefined
  const copies = selections.map((selection, i) => {
    const own = newestLines(compileRedaction(selection, job.input.elements, baseUrl), writer)
    const sink: RowSink = (fields) => {
      if (last === own) return own.take(fields)
      // Reports the issues of one type before the next type begins.
      const reported = last?.end()
      writer.turn(selection.scene.type)
      last = own
      const wait = own.take(fields)
      return reported && wait ? reported.then(() => wait) : (reported ?? wait)
    }
    return { sql: queries[i] ?? '', sink }
  })
  await session.copyInOrder(copies)
  await last?.end()
}

interface Shown {
  readonly selection: Selection
  readonly show: RedactRow
}

/** Writes compartments patient by patient: `part.after` is a position in the part. */
async function readCompartments(
  { store, principal, job, baseUrl, session }: Reading,
  part: ExportPart,
  writer: LineWriter,
): Promise<void> {
  const shown = await shownTypes(store, principal, job, { range: part, baseUrl })
  let header = EMPTY
  let patient = ''
  let isFirst = false
  await session.copy(compartmentLinesSql(job, part, shown), (fields) => {
    const [place, first, reference, type, id, content, metaExtension, ruling] = fields
    if (!place || !first || !reference || !type || !id) throw new Error('A row has no id')
    const name = sliceToBuffer(reference).toString()
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
      const wait = writer.add(place, text, header, isFirst)
      isFirst = false
      return wait
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error
      return writer.bad(Buffer.from(sliceToBuffer(id)), typeName(number))
    }
  })
}

function headerOf(reference: string): Slice {
  const parameter = [{ name: 'header', valueReference: { reference } }]
  return toSlice(Buffer.from(JSON.stringify({ resourceType: 'Parameters', parameter })))
}

async function shownTypes(
  store: StoreContext,
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
    const selection = await selectType(store, principal, typeName(type), job)
    if (selection === undefined) throw new Error('What is listed is not exported')
    found.set(type, { selection, show: compileRedaction(selection, job.input.elements, baseUrl) })
  }
  return found
}

/** Line positions are the same for every reader of the part. */
function compartmentLinesSql(
  job: PlannedJob,
  part: ExportPart,
  shown: ReadonlyMap<number, Shown>,
): string {
  const [one] = shown.values()
  if (one === undefined) return 'select null where false'
  const { scene: scope, at } = one.selection
  const own = literal(job.id, 'uuid')
  const { low, high, after } = part
  const withMeta = [...shown].filter(([, { selection }]) => needsMeta(selection))
  const types = literal(
    withMeta.map(([type]) => type),
    'int[]',
  )
  const range = rangeSql('c.patient', { low, high }, literal).map((test) => `and ${test}`)
  const behind = after === undefined ? '' : `where l.n > ${literal(numberOf(after), 'bigint')}`
  // A resource in several arrays changed while the list was made.
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
      where v.project = ${literal(scope.project, 'int')} and v.type = x.type and v.id = x.id
        and v.lu <= ${literal(at, 'timestamptz')} order by v.ver desc limit 1) v
    where v.content is not null order by x.patient, x.place, x.id`
}

function numberOf(place: string): bigint {
  return uuidToBytes(place).readBigUInt64BE(8)
}
