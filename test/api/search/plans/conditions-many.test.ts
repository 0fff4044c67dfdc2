import t from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import type { Raw } from '../../../fixtures/oracle/values.ts'

const { admin } = await openBotica(t)
const COUNT = 60
/** Searches with so many conditions on one side table that planning could exceed the statement timeout. */
const MANY = 40

const ids: string[] = []
for (let i = 0; i < COUNT; i++) {
  const made = await admin.create({
    resourceType: 'Observation',
    status: 'final',
    code: { coding: [{ system: 'urn:many', code: 'x' }] },
    issued: `2024-01-01T00:00:${String(i).padStart(2, '0')}Z`,
    component: [
      {
        code: { coding: [{ system: 'urn:many', code: 'y' }] },
        valueQuantity: { value: i, unit: 'x' },
      },
    ],
    valueString: `many ${i}`,
  })
  ids.push(made.id)
}

const found = async (query: string): Promise<Raw> => {
  const { status, body, text } = await admin.post<Raw>('Observation/_search', query, {
    'Content-Type': 'application/x-www-form-urlencoded',
  })
  if (status !== 200) throw new Error(`${query.slice(0, 100)} answered ${status}: ${text}`)
  return body
}
const idsIn = (body: Raw): string[] => (body.entry ?? []).map(({ resource }: Raw) => resource.id)
const repeated = (condition: (i: number) => string) =>
  Array.from({ length: MANY }, (_, i) => condition(i)).join('&')

/** Conditions, the last of which is the most selective. */
const CASES: Readonly<Record<string, (i: number) => string>> = {
  quantities: (i) => `component-value-quantity=gt${i}`,
  composites: (i) => `component-code-value-quantity=y$gt${i}`,
  'parts of texts': (i) =>
    `value-string:contains=${i < MANY - 1 ? 'man' : 'y'}${' '.repeat(i % 3)}`,
  'quantities and texts': (i) =>
    i % 2 === 0 ? `component-value-quantity=ge${i + 1}` : `value-string=many&_=${i}`,
}

for (const [name, condition] of Object.entries(CASES)) {
  t.test(`answers ${MANY} conditions on ${name}`, async (t) => {
    const query = repeated(condition)
    const single = query.split('&').filter((one) => !one.startsWith('_='))
    const expected = new Set(ids)
    for (const one of single) {
      const matches = new Set(idsIn(await found(`${one}&_count=${COUNT}`)))
      for (const id of expected) if (!matches.has(id)) expected.delete(id)
    }
    t.ok(expected.size > 0)
    for (const sort of [
      '-_lastUpdated',
      'component-value-quantity',
      '-value-string',
      '_id',
      'code',
    ]) {
      const body = await found(`${query}&_sort=${sort}&_count=${COUNT}&_total=accurate`)
      t.same(idsIn(body).sort(), [...expected].sort(), sort)
      t.equal(body.total, expected.size, `total, ${sort}`)
    }
    const estimate = await found(`${query}&_count=0&_total=estimate`)
    t.type(estimate.total, 'number')
  })
}

t.test('answers an exact text among many conditions', async (t) => {
  const query = `${repeated((i) => `value-string:exact=many ${i % 2 === 0 ? 7 : '7,x'}`)}&code=x`
  t.same(idsIn(await found(query)), [ids[7]])
})

t.test('answers the maximum number of conditions', async (t) => {
  const query = Array.from({ length: 200 }, (_, i) => `component-value-quantity=gt${i / 10}`).join(
    '&',
  )
  t.equal(idsIn(await found(`${query}&_count=${COUNT}`)).length, COUNT - 20)
  const refused = await admin.get(`Observation?${query}&value-string=x`)
  t.equal(refused.status, 400)
})
