import t from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import type { Resource } from '../../../fixtures/fhir.ts'
import { compareKeys, type Stored, sortKeys } from '../../../fixtures/oracle/oracle.ts'
import { idsFound } from '../../../fixtures/oracle/stage.ts'
import type { Raw } from '../../../fixtures/oracle/values.ts'

const { admin } = await openBotica(t)
const STABLE = 60
const PAGE = 7
/** Limit of writes per walk: a walk would never end if writes outran it. */
const MOST_WRITES = 300

/** Many resources share values, which exercises the tie-break. */
function anObservation(i: number, mark: string): Resource {
  return {
    resourceType: 'Observation',
    status: i % 2 === 0 ? 'final' : 'amended',
    code: { coding: [{ system: 'urn:pages', code: `c${i % 3}` }] },
    identifier: [{ system: 'urn:pages', value: mark }],
    ...(i % 5 === 0 ? {} : { effectiveDateTime: `2024-0${1 + (i % 4)}-01` }),
    ...(i % 4 === 0 ? {} : { valueQuantity: { value: i % 6, unit: 'x' } }),
  }
}

const stable: Stored[] = []
for (let i = 0; i < STABLE; i += 10) {
  const made = await Promise.all(
    Array.from({ length: 10 }, (_, k) => admin.create(anObservation(i + k, 'stable'))),
  )
  for (const json of made) stable.push({ type: 'Observation', id: json.id, json: json as Raw })
}

/** Creates, changes and deletes resources until stopped. */
function startWriting(): () => Promise<number> {
  let isOver = false
  let writes = 0
  const work = async (lane: number) => {
    for (let i = lane; !isOver && i < MOST_WRITES; i += 3) {
      const moving = await admin.create(anObservation(i, 'moving'))
      const moved = { ...anObservation(i + 1, 'moving'), id: moving.id }
      const { status } = await admin.put(`Observation/${moving.id}`, moved)
      if (status !== 200) throw new Error(`A change answered ${status}`)
      if (i % 2 === 0) await admin.del(`Observation/${moving.id}`)
      writes += 1
    }
  }
  const lanes = [0, 1, 2].map(work)
  return async () => {
    isOver = true
    await Promise.all(lanes)
    return writes
  }
}

const SORTS = [
  '_lastUpdated',
  '-_lastUpdated',
  '_id',
  '-_id',
  'date',
  '-date',
  'code',
  '-code,date',
  'value-quantity',
  '-value-quantity,_id',
  'status,-date',
]

/** Returns the unchanged resources in order, without those that moved. */
function inOrder(sort: string): string[] {
  const descending = sort.startsWith('-') && !sort.includes(',')
  const byId = (a: Stored, b: Stored) => (a.id < b.id ? -1 : 1)
  const sorted = stable.toSorted((a, b) => {
    const order = compareKeys(sortKeys(a, sort), sortKeys(b, sort), sort)
    if (order !== 0) return order
    const isColumn = /^-?(_lastUpdated|_id|date)$/.test(sort)
    return descending && isColumn ? byId(b, a) : byId(a, b)
  })
  return sorted.map(({ id }) => id)
}

for (const sort of SORTS) {
  t.test(`neither repeats nor skips rows by ${sort} while others write`, async (t) => {
    const stop = startWriting()
    const found = await idsFound(admin, `Observation?_sort=${sort}&_count=${PAGE}`)
    const writes = await stop()
    t.ok(writes > 0, 'others wrote')
    const isStable = new Set(stable.map(({ id }) => id))
    const kept = found.filter((id) => isStable.has(id))
    t.same(kept, inOrder(sort))
  })
}

t.test('returns a complete filtered search during writes', async (t) => {
  const stop = startWriting()
  const query = `Observation?identifier=urn:pages|stable&status=final&_count=${PAGE}`
  const found = await idsFound(admin, query)
  await stop()
  const expected = stable.filter(({ json }) => json.status === 'final').map(({ id }) => id)
  t.equal(new Set(found).size, found.length)
  t.same(found.toSorted(), expected.sort())
})
