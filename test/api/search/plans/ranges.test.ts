/** Quantities and composites that are read by index ranges: no range may be missing. */
import t from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import type { Raw } from '../../../fixtures/oracle/values.ts'

const { admin } = await openBotica(t)
const UCUM = 'http://unitsofmeasure.org'
const names = new Map<string, string>()

async function observe(name: string, valueQuantity: object, coding: object): Promise<void> {
  const { id } = await admin.create({
    resourceType: 'Observation',
    status: 'final',
    code: { coding: [coding] },
    valueQuantity,
  })
  names.set(id, name)
}

async function found(query: string): Promise<string[]> {
  const { status, body, text } = await admin.get<Raw>(`Observation?${query}&_count=100`)
  if (status !== 200) throw new Error(`${query}: ${text}`)
  return (body.entry ?? []).map(({ resource }: Raw) => names.get(resource.id)).sort()
}

const ours = { system: 'urn:a', code: 'x' }
const theirs = { system: 'urn:b', code: 'x' }
const plain = { code: 'x' }
await observe('5 mg', { value: 5, system: UCUM, code: 'mg', unit: 'mg' }, ours)
await observe('200 mg', { value: 200, system: UCUM, code: 'mg', unit: 'mg' }, theirs)
await observe('2 g', { value: 2, system: UCUM, code: 'g', unit: 'g' }, plain)
await observe('above 7', { value: 7, comparator: '>' }, ours)
await observe('below 3', { value: 3, comparator: '<' }, plain)
await observe('huge', { value: 5e12 }, ours)

t.test('finds ranges that start far below the searched value', async (t) => {
  t.same(await found('value-quantity=gt100'), ['200 mg', 'above 7', 'huge'])
  t.same(await found('value-quantity=ge200'), ['200 mg', 'above 7', 'huge'])
  t.same(await found('value-quantity=150'), ['above 7'])
  t.same(await found('value-quantity=gt1e11'), ['above 7', 'huge'])
  t.same(await found('value-quantity=lt2'), ['below 3'])
})

t.test('finds a quantity in every stored unit, and none in an unknown unit', async (t) => {
  t.same(await found(`value-quantity=gt100|${UCUM}|mg`), ['2 g', '200 mg'])
  t.same(await found(`value-quantity=gt100000|${UCUM}|ug`), ['2 g', '200 mg'])
  t.same(await found(`value-quantity=gt1|${UCUM}|m`), [])
  t.same(await found(`value-quantity=5|${UCUM}|mg`), ['5 mg'])
})

t.test('matches the code of a composite in any, one or no system', async (t) => {
  t.same(await found('code-value-quantity=x$gt4'), ['200 mg', '5 mg', 'above 7', 'huge'])
  t.same(await found('code-value-quantity=urn:a|x$gt4'), ['5 mg', 'above 7', 'huge'])
  t.same(await found('code-value-quantity=urn:b|x$gt4'), ['200 mg'])
  t.same(await found('code-value-quantity=x$lt4'), ['2 g', 'below 3'])
  t.same(await found('code-value-quantity=y$gt4'), [])
  t.same(await found('combo-code-value-quantity=x$gt4,y$gt4'), [
    '200 mg',
    '5 mg',
    'above 7',
    'huge',
  ])
})

t.test('finds the same matches by phonetic as by name', async (t) => {
  await admin.create({ resourceType: 'Patient', name: [{ family: 'Ranger', given: ['Ann Lou'] }] })
  for (const query of ['phonetic=rang', 'name=rang', 'phonetic=lou ann ranger', 'name=ann lou']) {
    const { body } = await admin.get<Raw>(`Patient?${query}&_sort=phonetic`)
    t.equal(body.entry?.length, 1, query)
  }
})

const PARTIAL_DATES = [
  '2024',
  '2024-03',
  '2024-03-15',
  '2024-03-15T10:30:00Z',
  '2024-03-16T00:10:00+13:00',
  '2024-03-15T23:59:30-01:00',
]
const EARLIER_DATES = [
  '2023',
  '2024-01-01',
  '2024-02',
  '2024-03-01',
  '2024-03-14',
  '2024-03-15T10:29:59Z',
]
const partial = { system: 'urn:partial', code: 'x' }
for (const effectiveDateTime of [...EARLIER_DATES, ...PARTIAL_DATES]) {
  const { id } = await admin.create({
    resourceType: 'Observation',
    status: 'final',
    code: { coding: [partial] },
    effectiveDateTime,
  })
  names.set(id, effectiveDateTime)
}

/** Follows the pages to the end. */
async function listed(query: string): Promise<string[]> {
  const all: string[] = []
  for (let next: string | undefined = `Observation?${query}&_count=1`; next !== undefined; ) {
    const { body }: Raw = await admin.get<Raw>(next)
    all.push(...(body.entry ?? []).map(({ resource }: Raw) => names.get(resource.id)))
    next = body.link.find(({ relation }: Raw) => relation === 'next')?.url
  }
  return all
}

t.test('sorts by a date from its bound on, with the partial dates around the bound', async (t) => {
  const since = 'date=ge2024-03-15T10:30:00Z'
  // Without the condition on the code, the search walks along the dates.
  for (const search of [since, `${since}&code=urn:partial|x`, `${since}&date=lt2030`]) {
    t.same(await listed(`${search}&_sort=date`), PARTIAL_DATES, search)
    t.same(await listed(`${search}&_sort=-date`), PARTIAL_DATES.toReversed(), search)
  }
  t.same(await listed('date=gt2024-03-15&_sort=date'), [
    ...PARTIAL_DATES.slice(0, 2),
    PARTIAL_DATES[5],
  ])
  t.same(await listed(`${since}&date=ge2024-03-20&_sort=date`), PARTIAL_DATES.slice(0, 2))
})
