import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { aBot, handler } from '../../fixtures/bots/bots.ts'
import type { Resource } from '../../fixtures/fhir.ts'

const botica = await openBotica(t, { worker: true })
const { admin, project } = botica
const json = { 'Content-Type': 'application/fhir+json' }

/** Numbers that JavaScript would write otherwise, and numbers that it would not. */
const NUMBERS = [
  '1.00',
  '1.50',
  '1e2',
  '1E+2',
  '-0.0',
  '0.10',
  '100',
  '12345678901234567890.12',
  '0.0000001',
  '3.14159265358979323846264338327950288',
  '9007199254740993',
  '72.5',
]

function observation(value: string, more = ''): string {
  return `{"resourceType":"Observation","status":"final","code":{"text":"x"},"valueQuantity":{"value":${value}}${more}}`
}

const numberIn = (text: string) => /"valueQuantity":\{"value":([^,}]+)/.exec(text)?.[1]

async function create(value: string, more = ''): Promise<string> {
  const made = await admin.post('Observation', observation(value, more), json)
  t.equal(made.status, 201, made.text)
  return `Observation/${made.body.id}`
}

t.test('accepts as many decimal places as PostgreSQL reads', async (t) => {
  await create('1e-16383')
  for (const number of ['1e-16384', `0.${'0'.repeat(16_383)}1`]) {
    const { status, text } = await admin.post('Observation', observation(number), json)
    t.equal(status, 400, number.slice(0, 20))
    t.match(text, 'Invalid numeric value')
  }
  t.equal((await admin.get('Observation?_sort=subject')).status, 200)
})

for (const number of NUMBERS) {
  t.test(`${number} stays as it was written`, async (t) => {
    const path = await create(number)
    const holds = async (asked: string) =>
      t.equal(numberIn((await admin.get(asked)).text), number, asked)
    await holds(path)
    await holds(`${path}/_history/1`)
    await holds(`${path}?_elements=value`)
    await holds(`${path}?_summary=data`)
    t.match((await admin.get(`${path}?_pretty=true`)).text, `"value": ${number}`)

    const patched = await admin.patch(path, [{ op: 'add', path: '/language', value: 'en' }])
    t.equal(numberIn(patched.text), number, 'after a patch of another element')
    const id = path.slice('Observation/'.length)
    const updated = await admin.put(path, observation(number, `,"id":"${id}"`), json)
    t.equal(updated.body.meta?.versionId, '3')
    t.equal(numberIn(updated.text), number, 'after an update')
    const histories = (await admin.get(`${path}/_history`)).text.split('"valueQuantity"').slice(1)
    t.same(
      histories.map((text) => numberIn(`"valueQuantity"${text}`)),
      [number, number, number],
    )
    const found = await admin.get(`Observation?_id=${id}`)
    t.equal(numberIn(found.text), number, 'in a search')
  })
}

t.test('a patch keeps numbers as written', async (t) => {
  const path = await create('1')
  const patch = (body: string) =>
    admin.patch(path, body, { 'Content-Type': 'application/json-patch+json' })
  const replaced = await patch('[{"op":"replace","path":"/valueQuantity/value","value":2.50}]')
  t.equal(numberIn(replaced.text), '2.50')
  const tested = await patch(
    '[{"op":"test","path":"/valueQuantity/value","value":2.5},{"op":"copy","from":"/valueQuantity","path":"/valueQuantity"}]',
  )
  t.equal(tested.status, 200)
  t.equal(numberIn(tested.text), '2.50')
})

t.test('a number in another notation is a change', async (t) => {
  const pairs = [
    ['100', '1e2'],
    ['10.00', '1.0e1'],
    ['1.0', '1.00'],
  ] as const
  for (const [before, after] of pairs) {
    const path = await create(before)
    const more = `,"id":"${path.slice('Observation/'.length)}"`
    t.equal((await admin.put(path, observation(before, more), json)).body.meta?.versionId, '1')
    const updated = await admin.put(path, observation(after, more), json)
    t.equal(updated.body.meta?.versionId, '2', `${before} to ${after}`)
    t.equal(numberIn((await admin.get(path)).text), after)
  }
})

t.test('bundles keep numbers, rewritten links or not', async (t) => {
  const link = `urn:uuid:${randomUUID()}`
  const entry = (url: string, resource: string) =>
    `{"request":{"method":"${url.split(' ')[0]}","url":"${url.split(' ')[1]}"},"resource":${resource}}`
  const data = Buffer.from(
    '[{"op":"replace","path":"/valueQuantity/value","value":7.00}]',
  ).toString('base64')
  for (const type of ['transaction', 'batch']) {
    const [put, patched] = [await create('5'), await create('6')]
    const body = `{"resourceType":"Bundle","type":"${type}","entry":[
      {"fullUrl":"${link}","request":{"method":"POST","url":"Patient"},"resource":{"resourceType":"Patient"}},
      ${entry('POST Observation', observation('1.00', `,"subject":{"reference":"${link}"}`))},
      ${entry(`PUT ${put}`, observation('2.0', `,"id":"${put.slice(12)}"`))},
      ${entry(`PUT Observation?identifier=${randomUUID()}`, observation('3.0'))},
      ${entry(`PATCH ${patched}`, `{"resourceType":"Binary","contentType":"application/json-patch+json","data":"${data}"}`)}
    ]}`
    const done = await admin.post('', body, json)
    t.equal(done.status, 200, done.text)
    const values = [...done.text.matchAll(/"valueQuantity":\{"value":([^,}]+)/g)]
    t.same(
      values.map(([, value]) => value),
      ['1.00', '2.0', '3.0', '7.00'],
      type,
    )
    t.equal(numberIn((await admin.get(put)).text), '2.0')
    t.equal(numberIn((await admin.get(patched)).text), '7.00')
  }
})

t.test('a search finds a quantity however it is written', async (t) => {
  const tenant = await botica.createTenant()
  const [written] = await Promise.all(
    ['1.50', '15e-1', '1.5'].map((value) =>
      tenant.admin.post('Observation', observation(value), json),
    ),
  )
  t.equal(written?.status, 201)
  const count = async (query: string) =>
    (await tenant.admin.get<Resource & { total: number }>(`${query}&_summary=count`)).body.total
  t.equal(await count('Observation?value-quantity=gt1'), 3)
  t.equal(await count('Observation?value-quantity=1.5'), 3)
  t.equal(await count('Observation?value-quantity=1.50'), 3)
  t.equal(await count('Observation?value-quantity=gt1.5'), 0)

  const risk = (score: string) =>
    `{"resourceType":"RiskAssessment","status":"final","subject":{"display":"x"},"prediction":[{"probabilityDecimal":${score}}]}`
  const made = await tenant.admin.post('RiskAssessment', risk('0.80'), json)
  t.equal(made.status, 201, made.text)
  t.equal(await count('RiskAssessment?probability=gt0.5'), 1)
  t.equal(await count('RiskAssessment?probability=0.8'), 1)

  const place = '{"resourceType":"Location","position":{"latitude":52.50,"longitude":13.40}}'
  t.equal((await tenant.admin.post('Location', place, json)).status, 201)
})

t.test('a bot that reads and writes a resource keeps its numbers', async (t) => {
  const made = await admin.post(`/admin/projects/${project.id}/bot`, { name: 'Decimals' })
  const code = `const { deepClone } = require('@medplum/core')
  exports.handler = async (medplum, event) => {
    const { path, input } = event.input
    const found = await medplum.readResource('Observation', path.split('/')[1])
    found.language = 'en'
    const updated = await medplum.updateResource(found)
    const copy = await medplum.createResource({ ...deepClone(updated), id: undefined })
    const [same] = await medplum.searchResources('Observation', { _id: copy.id })
    const valueQuantity = { ...same.valueQuantity, unit: 'kg' }
    await medplum.updateResource({ ...structuredClone(same), valueQuantity })
    const given = await medplum.createResource(input)
    return { copy: copy.id, given: given.id, value: input.valueQuantity.value + 1, input }
  }`
  const deployed = await admin.post(`Bot/${made.body.id}/$deploy`, { code, filename: 'index.js' })
  t.equal(deployed.status, 200, deployed.text)
  for (const number of NUMBERS) {
    const path = await create(number)
    const input = `{"path":"${path}","input":${observation(number)}}`
    const done = await admin.post<Resource & { copy: string; given: string; value: unknown }>(
      `Bot/${made.body.id}/$execute`,
      input,
      { 'Content-Type': 'application/json' },
    )
    t.equal(done.status, 200, done.text)
    t.equal(done.body.value, Number(number) + 1, 'numbers are numbers to the bot')
    t.equal(numberIn(done.text), number, `${number} in the result of the bot`)
    for (const place of [path, `Observation/${done.body.copy}`, `Observation/${done.body.given}`]) {
      t.equal(numberIn((await admin.get(place)).text), number, `${number} at ${place}`)
    }
  }
})

t.test('hides the text of numbers from loops over a resource', async (t) => {
  const bot = await aBot(
    botica,
    handler(`
    const { input } = event
    const copy = Object.assign({}, input, { b: 2 })
    return [Object.keys(input), Object.entries(copy), JSON.parse(JSON.stringify(input)), { ...copy, a: 2.5 }, copy, { a: input.a }]`),
  )
  const type = { 'Content-Type': 'application/json' }
  const answer = await admin.post(`Bot/${bot}/$execute`, '{"a":1.00,"b":1.0}', type)
  t.equal(
    answer.text,
    '[["a","b"],[["a",1],["b",2]],{"a":1,"b":1},{"a":2.5,"b":2},{"a":1.00,"b":2},{"a":1}]',
  )
})
