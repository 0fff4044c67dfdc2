import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'

const { admin } = await openBotica(t)

interface Outcome {
  readonly issue: readonly {
    readonly code: string
    readonly details: { readonly text: string }
    readonly expression?: readonly string[]
  }[]
}

const cursorWith = (time: string) =>
  Buffer.from(JSON.stringify(['-lu', time, randomUUID()])).toString('base64url')

const many = (count: number) => Array.from({ length: count }, (_, i) => `v${i}`).join(',')

/** Query → text and parameter at fault. */
const REFUSED: readonly (readonly [query: string, text: string, expression: string])[] = [
  ['Patient?nmae=x', 'Unknown search parameter: nmae', 'nmae'],
  ['Patient?name:foo=x', 'Invalid modifier :foo for Patient-name', 'name:foo'],
  ['Patient?gender:exact=x', 'Invalid modifier :exact for individual-gender', 'gender:exact'],
  ['Patient?birthdate:not=2020', 'Invalid modifier :not for individual-birthdate', 'birthdate:not'],
  ['Patient?birthdate=soon', 'Invalid date value: soon', 'birthdate'],
  ['Patient?birthdate=2020-13', 'Invalid date value: 2020-13', 'birthdate'],
  ['Patient?birthdate=2021-02-29', 'Invalid date value: 2021-02-29', 'birthdate'],
  ['Patient?birthdate=gt', 'Invalid date value: gt', 'birthdate'],
  ['Patient?_lastUpdated=1%27', "Invalid date value: 1'", '_lastUpdated'],
  ['RiskAssessment?probability=x', 'Invalid number value: x', 'probability'],
  ['RiskAssessment?probability=1e999', 'Invalid number value: 1e999', 'probability'],
  ['RiskAssessment?probability=NaN', 'Invalid number value: NaN', 'probability'],
  ['Observation?value-quantity=5|a|b|c', 'Invalid quantity value: 5|a|b|c', 'value-quantity'],
  ['Patient?gender=|', 'Invalid token value: |', 'gender'],
  ['Patient?gender:missing=x', 'gender:missing must be true or false, not x', 'gender:missing'],
  ['Patient?_count=-1', 'Invalid _count: -1', '_count'],
  ['Patient?_count=1.5', 'Invalid _count: 1.5', '_count'],
  ['Patient?_count=ten', 'Invalid _count: ten', '_count'],
  ['Patient?_offset=-1', 'Invalid _offset: -1', '_offset'],
  ['Patient?_offset=10001', 'Search offset exceeds maximum (got 10001, max 10000)', '_offset'],
  ['Patient?_offset=0&_cursor=x', 'Cannot use both offset and cursor', '_cursor'],
  ['Patient?_cursor=x', 'Invalid cursor', '_cursor'],
  ['Patient?_cursor=%00', 'Invalid cursor', '_cursor'],
  ['Patient?_sort=name&_cursor=WyJuYW1lIl0', 'Invalid cursor', '_cursor'],
  [`Patient?_cursor=${cursorWith('0000-01-01T00:00:00.000Z')}`, 'Invalid cursor', '_cursor'],
  [`Patient?_cursor=${cursorWith('2021-02-30T00:00:00.000Z')}`, 'Invalid cursor', '_cursor'],
  ['Patient?_sort=nope', 'Unknown search parameter: nope', '_sort'],
  ['Patient?_sort=name;drop', 'Unknown search parameter: name;drop', '_sort'],
  ['Location?_sort=near', 'Sorting by near needs a place to be near to', '_sort'],
  ['?_type=Patient,Binary', 'Cannot search on Binary resource type', '_type'],
  ['Patient/x/*?_type=Binary', 'Binary is not in the Patient compartment', '_type'],
  ['Patient/x/Observation?_type=Patient', '_type is not supported', '_type'],
  ['Patient?_total=all', 'Invalid _total: all; use none, estimate or accurate', '_total'],
  ['Patient?_summary=x', 'Invalid _summary: x; use true, text, data, count, false', '_summary'],
  ['Patient?name=a%00b', 'Invalid value for name', 'name'],
  ['Patient?identifier=a%00b', 'Invalid value for identifier', 'identifier'],
  ['Observation?subject=a%00b', 'Invalid value for subject', 'subject'],
  ['Observation?subject:Nope=1', 'Invalid modifier :Nope for Observation-subject', 'subject:Nope'],
  [`Patient?name=${many(1001)}`, 'name has 1001 values; 1000 are allowed', 'name'],
  [
    'Observation?encounter.patient.organization.partof.name=x',
    'Search chains longer than three links are not currently supported',
    'encounter.patient.organization.partof.name',
  ],
  [
    'Observation?code-value-quantity=a',
    'code-value-quantity needs 2 values joined by $, not a',
    'code-value-quantity',
  ],
  [
    'Location?near=91|0',
    'Invalid value of near: 91|0; use latitude|longitude|distance|unit',
    'near',
  ],
  ['Patient?_has:Nope:patient:code=x', 'Unknown resource type: Nope', '_has:Nope:patient:code'],
  ['Patient?_include=Patient:name', 'Invalid include parameter: Patient:name', '_include'],
  ['Patient?_filter=name xx y', 'Invalid operator: xx', '_filter'],
  [
    'Observation?_filter=related[type eq "x"].target pr false',
    'Filters inside a path are not supported',
    '_filter',
  ],
  [
    'Observation?subject:Patient=Group/1',
    'Group/1 is not a reference to Patient',
    'subject:Patient',
  ],
  ['Patient?subject.name=x', 'Unknown search parameter: subject', 'subject.name'],
]

t.test('rejects invalid searches with the text and parameter', async (t) => {
  for (const [query, text, expression] of REFUSED) {
    const { status, body } = await admin.get<Outcome>(query)
    t.equal(status, 400, query.slice(0, 80))
    t.match(body.issue, [{ details: { text }, expression: [expression] }], query.slice(0, 80))
  }
})

t.test('rejects bytes that are not UTF-8', async (t) => {
  for (const query of [
    'Patient?name=%ff',
    'Patient?name=%c3%28',
    'Patient?%fe=x',
    'Patient?name=%ed%a0%80',
  ]) {
    const { status, body } = await admin.get<Outcome>(query)
    t.equal(status, 400, query)
    t.match(body.issue, [{ details: { text: 'The query is not valid UTF-8' } }], query)
  }
  t.equal((await admin.get('Patient?name=%c3%bc')).status, 200)
  t.equal((await admin.get('Patient?name=100%')).status, 200)
  const form = { 'Content-Type': 'application/x-www-form-urlencoded' }
  t.equal((await admin.post('Patient/_search', 'name=%ff', form)).status, 400)
  t.equal((await admin.post('Patient/_search', 'name=%c3%bc', form)).status, 200)
})

t.test('rejects a filter of megabytes', async (t) => {
  const form = { 'Content-Type': 'application/x-www-form-urlencoded' }
  const query = `_filter=name eq "${'x'.repeat(12_000_000)}"`
  const { status, text } = await admin.post('Patient/_search', query, form)
  t.equal(status, 400)
  t.match(text, '_filter may have 100000 characters')
})

const bareIds = (from: number) => Array.from({ length: 100 }, (_, i) => `id${from + i}`).join(',')
const targets = Array.from({ length: 20 }, (_, i) => `target=${bareIds(100 * i)}`)

t.test('rejects values that stand for too many resources', async (t) => {
  const form = { 'Content-Type': 'application/x-www-form-urlencoded' }
  const tags = ['a', 'b'].map((name) => `_tag=${name}${many(1000)}`)
  const entry = targets.map((query) => ({
    request: { method: 'DELETE', url: `Provenance?${query}` },
  }))
  const bundle = (type: string) => admin.post('', { resourceType: 'Bundle', type, entry })
  for (const { status, text } of [
    await admin.post('Provenance/_search', targets.join('&'), form),
    await admin.post('_search', tags.join('&'), form),
    await bundle('transaction'),
  ]) {
    t.equal(status, 400)
    t.match(text, 'The search has too many values')
  }
  const { status, text } = await bundle('batch')
  t.equal(status, 200)
  t.match(text, 'The search has too many values')
  t.equal((await admin.post('Provenance/_search', targets[0], form)).status, 200)
})

const SQL = [
  "' or 1=1 --",
  "'; drop table resource; --",
  '") union select 1 --',
  '$1::text',
  '\\',
  '%_%',
  '{1,2}',
  "a'||pg_sleep(9)||'",
]

const PLACES = [
  (sql: string) => `Patient?name=${sql}`,
  (sql: string) => `Patient?name:exact=${sql}`,
  (sql: string) => `Patient?name:contains=${sql}`,
  (sql: string) => `Patient?name:not=${sql}`,
  (sql: string) => `Patient?identifier=${sql}`,
  (sql: string) => `Patient?identifier=${sql}|${sql}`,
  (sql: string) => `Patient?identifier=${sql}|`,
  (sql: string) => `Patient?identifier:text=${sql}`,
  (sql: string) => `Patient?identifier:of-type=${sql}|${sql}|${sql}`,
  (sql: string) => `Patient?telecom:contains=${sql}`,
  (sql: string) => `Patient?gender:not=${sql}`,
  (sql: string) => `Patient?_id=${sql}`,
  (sql: string) => `Patient?_profile:below=${sql}`,
  (sql: string) => `Patient?_profile:above=${sql}`,
  (sql: string) => `Patient?_profile:contains=${sql}`,
  (sql: string) => `Patient?general-practitioner=${sql}`,
  (sql: string) => `Patient?general-practitioner.name=${sql}`,
  (sql: string) => `Patient?_has:Observation:patient:code=${sql}`,
  (sql: string) => `Observation?code-value-quantity=${sql}$5`,
  (sql: string) => `Observation?value-quantity=5|${sql}|${sql}`,
  (sql: string) => `Observation?code-value-string=${sql}$${sql}`,
]

t.test('treats SQL in a value as plain text', async (t) => {
  await admin.create({ resourceType: 'Patient', name: [{ family: 'Anybody' }], gender: 'male' })
  for (const sql of SQL) {
    for (const place of PLACES) {
      const query = place(encodeURIComponent(sql))
      const { status, body } = await admin.get<{ entry?: unknown[] }>(query)
      t.ok(status === 200 || status === 400, `${query} answered ${status}`)
      const isNegative = query.includes(':not=')
      if (status === 200 && !isNegative) t.equal(body.entry, undefined, `${query} finds nothing`)
    }
    for (const name of ['_sort', '_count', '_offset', '_cursor', '_total', '_summary', sql]) {
      const { status } = await admin.get(
        `Patient?${encodeURIComponent(name)}=${encodeURIComponent(sql)}`,
      )
      t.equal(status, 400, `${name}=${sql}`)
    }
  }
  t.equal((await admin.get<{ total: number }>('Patient?_summary=count')).body.total, 1)
})
