/**
 * Which Provenance goes with an export: that of which some target is exported, or of it only the newest
 * of each target. https://hl7.org/fhir/uv/bulkdata/STU2/export.html#query-parameters
 */
import type { Principal } from '../../../access/principal.ts'
import { storedParameters, typeNumber } from '../../../fhir/definitions.ts'
import { isObject, parseReference } from '../../../fhir/resource.ts'
import { bufferOf, type Slice, sliceOf } from '../../../platform/storage/slice.ts'
import type { Store } from '../../../store/rows/context.ts'
import { binder } from '../../../store/rows/side-rows.ts'
import { allSql } from '../../../store/search/tests/grant-tests.ts'
import type { ExportInput, PlannedJob, ProvenanceChoice } from '../rows/jobs.ts'
import type { LineSink } from '../rows/part.ts'
import { uuidOf } from '../rows/row-id.ts'
import { type Asked, typesOf } from '../rows/scope.ts'
import { type Selection, selectedIds, selectionOf } from '../rows/select.ts'

/** Targets that are looked at for each at a time: mostly one of the first is exported. */
const TARGETS = 10

/** Undefined: all that the member may see. */
export function provenanceChoice({
  level,
  provenance,
}: Pick<ExportInput, 'level' | 'provenance'>): ProvenanceChoice | undefined {
  return provenance ?? (level === 'system' ? undefined : 'relevant')
}

/** Of what the Provenance is that goes with an export. */
export function targetTypes(principal: Principal, input: Asked): readonly string[] {
  const isTarget = (type: string) => type !== 'Provenance'
  const named = typesOf(principal, input).filter(isTarget)
  if (named.length > 0) return named
  // Where nothing else is asked for, it is that of what would be.
  const usual = { ...input, types: undefined, provenance: undefined }
  return typesOf(principal, usual).filter(isTarget)
}

/** Row id and content of a Provenance. */
interface ProvenanceRow {
  readonly id: string
  readonly content: string
}

/** Tells those that go with the export, in their order. */
type ProvenanceJudge = (rows: readonly ProvenanceRow[]) => Promise<ReadonlySet<string>>

export function provenanceJudge(
  store: Store,
  principal: Principal,
  job: PlannedJob,
  own: Selection,
  choice: ProvenanceChoice,
): ProvenanceJudge {
  const types = new Set(targetTypes(principal, job.input))
  const selections = new Map<string, Promise<Selection | undefined>>()
  const selectionFor = (type: string) => {
    const known = selections.get(type)
    if (known !== undefined) return known
    const made = selectionOf(store, principal, type, job)
    selections.set(type, made)
    return made
  }

  /** Those of the references that are exported. */
  async function exported(references: ReadonlySet<string>): Promise<ReadonlySet<string>> {
    const found = new Set<string>()
    const parsed = [...references].flatMap((text) => parseReference(text) ?? [])
    for (const [type, own] of Map.groupBy(parsed, (one) => one.type)) {
      const selection = types.has(type) ? await selectionFor(type) : undefined
      if (selection === undefined) continue
      for (let from = 0; from < own.length; from += AT_ONCE) {
        const some = own.slice(from, from + AT_ONCE)
        const rowIds = some.map(({ id }) => store.keys.rowId(type, id))
        const ids = await selectedIds(store, selection, rowIds)
        some.forEach(({ id }, i) => {
          if (ids.has(rowIds[i] ?? '')) found.add(`${type}/${id}`)
        })
      }
    }
    return found
  }

  return async (rows) => {
    const going = new Set<string>()
    let open = rows.map(({ id, content }) => ({ id, targets: targetsOf(content) }))
    while (open.length > 0) {
      const round = open.map(({ id, targets }) => ({ id, targets: targets.slice(0, TARGETS) }))
      const found = await exported(new Set(round.flatMap(({ targets }) => targets)))
      const newest = choice === 'latest' ? await newestOf(store, own, found) : undefined
      for (const { id, targets } of round) {
        const goes = (target: string) =>
          newest === undefined ? found.has(target) : newest.get(target) === id
        if (targets.some(goes)) going.add(id)
      }
      open = open.flatMap(({ id, targets }) => {
        const left = targets.slice(TARGETS)
        return going.has(id) || left.length === 0 ? [] : [{ id, targets: left }]
      })
    }
    return going
  }
}

const AT_ONCE = 1000

/** Hands on the lines of what goes with the export, some at a time and in their order. */
export function provenanceLines(judge: ProvenanceJudge, line: LineSink) {
  let batch: { readonly id: Buffer; readonly content: string; readonly shown: Buffer }[] = []
  let before = Promise.resolve()

  function flush(): Promise<void> {
    const rows = batch
    batch = []
    before = before.then(async () => {
      const named = rows.map(({ id, content }) => ({ id: uuidOf(id), content }))
      const going = await judge(named)
      for (const [i, { id, shown }] of rows.entries()) {
        if (going.has(named[i]?.id ?? '')) await line(sliceOf(id), sliceOf(shown))
      }
    })
    return before
  }

  return {
    add(id: Slice, content: Slice, shown: Slice): Promise<void> | undefined {
      batch.push({
        id: Buffer.from(bufferOf(id)),
        content: bufferOf(content).toString(),
        shown: Buffer.from(bufferOf(shown)),
      })
      return batch.length < AT_ONCE ? undefined : flush()
    },
    end: flush,
  }
}

/** `Type/id`, without repeats; Patients first, by which most is found. */
export function targetsOf(content: string): readonly string[] {
  const { target } = JSON.parse(content)
  const references = (Array.isArray(target) ? target : []).flatMap((item) => {
    const text = isObject(item) && typeof item.reference === 'string' ? item.reference : undefined
    const found = parseReference(text)
    return found === undefined ? [] : [`${found.type}/${found.id}`]
  })
  const isPatient = (text: string) => text.startsWith('Patient/')
  return [...new Set([...references.filter(isPatient), ...references])]
}

/** Target → row id of the newest Provenance about it that the member sees. One statement. */
async function newestOf(
  { keys, connection }: Store,
  { scene, at }: Selection,
  targets: ReadonlySet<string>,
): Promise<ReadonlyMap<string, string>> {
  if (targets.size === 0) return new Map()
  const list = [...targets]
  const [code = 'target'] = storedParameters('Provenance', 'target')
  const parameter = keys.param(scene.project, 'Provenance', code)
  const held = list.map((one) => keys.reference(parameter, keys.target(scene.project, one)))
  const { values, bind } = binder()
  const rows = await connection.query<{ n: number; id: string }>({
    text: `select t.n::int, l.id
      from unnest(${bind(`{${held.join(',')}}`, 'bigint[]')}) with ordinality t(key, n)
      cross join lateral (
        select r.id from resource r join version v using (project, type, id, ver)
        where r.keys @> array[t.key] and (r.project = ${bind(scene.project, 'int')}) is true
          and (r.type = ${bind(typeNumber(scene.type), 'smallint')}) is true
          and (r.lu <= ${bind(at, 'timestamptz')}) is true and ${allSql(scene.visible, bind)}
        order by (v.content::jsonb ->> 'recorded')::timestamptz desc nulls last, r.lu desc, r.id
        limit 1) l`,
    values,
  })
  return new Map(rows.map(({ n, id }) => [list[n - 1] ?? '', id]))
}
