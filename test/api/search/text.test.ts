/** Imports the extraction of text, as the expected contents. */
import t from 'tap'
import { extractResourceText } from '../../../shared/fhir/searched-text.ts'
import { openBotica, statementsAsked, until } from '../../fixtures/botica.ts'
import type { Client } from '../../fixtures/client.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'
import { type Entry, memberUnder } from '../../fixtures/policy/policy.ts'
import { anObservation, aPatient, aPractitioner, r4Examples } from '../../fixtures/resources.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const READY_MS = 60_000
const botica = await openBotica(t, { env: { DATABASE_URL: await createDatabase(t) } })
const { admin, superAdmin, project, services } = botica
const plain = await botica.createTenant()

const narrative = (text: string) => ({
  status: 'generated',
  div: `<div xmlns="http://www.w3.org/1999/xhtml">${text}</div>`,
})
const noted = (text: string, more: object = {}) => aPatient({ text: narrative(text), ...more })

async function change(id: string, changes: object): Promise<void> {
  const { body } = await superAdmin.get(`Project/${id}`)
  const { status, text } = await superAdmin.put(`Project/${id}`, { ...body, ...changes })
  if (status !== 200) throw new Error(text)
}

const switched = (valueBoolean: boolean) => ({
  setting: [{ name: 'fullTextSearch', valueBoolean }],
})

async function ids(client: Client, query: string): Promise<string[]> {
  const { status, body } = await client.get<Raw>(query)
  if (status !== 200) throw new Error(`${query}: ${JSON.stringify(body)}`)
  return (body.entry ?? []).map((entry: Raw) => entry.resource.id)
}

const isReady = (client: Client) => async () =>
  (await client.get('Patient?_text=anything')).status === 200

const early = await admin.create(noted('Early &amp; <b>written</b> be&#102;ore'))
const under = async (...entries: Entry[]) => (await memberUnder(botica, { entries })).client

t.test('rejects text search in Projects without the feature', async (t) => {
  for (const parameter of ['_text', '_content']) {
    t.match(await admin.get(`Patient?${parameter}=early`), {
      status: 400,
      body: {
        issue: [
          {
            code: 'not-supported',
            details: { text: `${parameter} is not supported` },
            expression: [parameter],
          },
        ],
      },
    })
  }
  const lenient = await admin.get<Raw>('Patient?_text=early', { Prefer: 'handling=lenient' })
  t.equal(lenient.status, 200)
  t.match(await admin.get('Patient?_sort=-_score'), {
    status: 400,
    body: { issue: [{ details: { text: 'Sorting by _score needs _text or _content' } }] },
  })
  const [row] = await services.database.query<{ count: number }>({
    text: `select count(*)::int as count from resource_text x join tenant t using (project)
      where t.fhir_id = any($1)`,
    values: [[project.id, plain.project.id]],
  })
  t.equal(row?.count, 0)
})

t.test('finds existing resources when the new index is ready', async (t) => {
  await change(project.id, switched(true))
  await until(async () => {
    const { body } = await admin.get<Raw>('Patient?_text=early')
    return body.issue?.[0].details.text === 'Search parameter _text is not ready'
  }, READY_MS)
  const explained = (await admin.get<Raw>('Patient?_text=early&_explain=true')).body
  t.match(JSON.stringify(explained), /Search parameter _text is not ready: \d+ of \d+ resources/)
  await botica.startWorker()
  await until(isReady(admin), READY_MS)
  t.same(await ids(admin, 'Patient?_text=early'), [early.id])
  t.same(await ids(admin, 'Patient?_text=before'), [early.id])
  t.equal((await plain.admin.get('Patient?_text=early')).status, 400)
  const described = (await admin.get<Raw>('metadata')).body.rest[0].resource
  const ofPatient = described.find(({ type }: Raw) => type === 'Patient').searchParam
  t.ok(ofPatient.some(({ name }: Raw) => name === '_content'))
  const ofClient = described.find(({ type }: Raw) => type === 'ClientApplication').searchParam
  t.notOk(ofClient.some(({ name }: Raw) => name === '_content'))
})

const created = await Promise.all([
  admin.create(noted('Chronic kidney disease, stage three')),
  admin.create(noted('Kidney stone; kidney pain; kidney')),
  admin.create(noted('Stone-cold sober. Straße Ångström', { address: [{ city: 'Kidneytown' }] })),
  admin.create(aPatient({ address: [{ text: 'Over the kidney shop', city: 'Stonehenge' }] })),
])
const [disease = '', stones = '', sober = '', shop = ''] = created.map(({ id }) => id)

t.test('finds words, phrases, exclusions and alternatives', async (t) => {
  const cases: readonly [string, readonly string[]][] = [
    ['_text=kidney', [disease, stones]],
    ['_text=KIDNEY stone', [stones]],
    ['_text="kidney disease"', [disease]],
    ['_text="disease kidney"', []],
    ['_text=kidney -pain', [disease]],
    ['_text=disease or sober', [disease, sober]],
    ['_text=disease,sober', [disease, sober]],
    ['_text=angstrom', [sober]],
    ['_text=kidney&_text=chronic', [disease]],
    ['_text=kidneys', []],
    ['_content=kidney', [disease, stones, shop]],
    ['_content=stonehenge', [shop]],
    ['_content=kidneytown&_text=sober', [sober]],
    ['_text=kidney&address-city=stonehenge', []],
    ['_content=kidney&address-city=stonehenge', [shop]],
    ['_text=!!', []],
    ['_text=stone-cold', [sober]],
    ['_text=-cold -chronic kidney', [stones]],
    ['_text=xmlns', []],
    ["_text=') or true --", []],
    ["_text='#1.2'", []],
    ['_content=Patient', []],
  ]
  for (const [query, expected] of cases) {
    const encoded = query.replace(/[^&=]+/g, encodeURIComponent)
    t.same((await ids(admin, `Patient?${encoded}`)).sort(), [...expected].sort(), query)
    const { body } = await admin.get<Raw>(`Patient?${encoded}&_total=accurate&_count=0`)
    t.equal(body.total, expected.length, `${query} counted`)
  }
  t.match(await admin.get('Patient?_text:exact=kidney'), { status: 400 })
})

t.test('sorts by _score, page by page', async (t) => {
  const { body } = await admin.get<Raw>('Patient?_content=kidney&_sort=-_score')
  const scores: number[] = body.entry.map(({ search }: Raw) => search.score)
  t.equal(body.entry[0].resource.id, stones)
  t.same(
    scores,
    scores.toSorted((a, b) => b - a),
  )
  t.ok(scores.every((score) => score > 0 && score <= 1))
  const whole = body.entry.map(({ resource }: Raw) => resource.id)
  t.same((await ids(admin, 'Patient?_content=kidney&_sort=_score,-_id')).at(-1), stones)
  const paged: string[] = []
  let next: string | undefined = 'Patient?_content=kidney&_sort=-_score&_count=1'
  while (next !== undefined) {
    const page: Raw = (await admin.get<Raw>(next)).body
    paged.push(...page.entry.map(({ resource }: Raw) => resource.id))
    next = page.link.find(({ relation }: Raw) => relation === 'next')?.url
  }
  t.same(paged, whole)
  t.match((await admin.get<Raw>('Patient?_text=disease')).body.entry[0].search, {
    mode: 'match',
    score: Number,
  })
})

t.test('searches words through a chain', async (t) => {
  const observation = await admin.create(
    anObservation(`Patient/${disease}`, { note: [{ text: 'Creatinine is high' }] }),
  )
  t.same(await ids(admin, 'Observation?subject:Patient._text=chronic'), [observation.id])
  t.same(await ids(admin, 'Patient?_has:Observation:subject:_content=creatinine'), [disease])
  t.same(await ids(admin, 'Patient?_has:Observation:subject:_text=creatinine'), [])
})

t.test('sees a change and a deletion at once, without an extra statement', async (t) => {
  const made = await admin.create(noted('Wandering albatross'))
  t.same(await ids(admin, 'Patient?_text=albatross'), [made.id])
  t.equal(await statementsAsked(services, admin, () => admin.create(noted('Counted'))), 1)
  await admin.put(`Patient/${made.id}`, { ...made, text: narrative('Wandering cormorant') })
  t.same(await ids(admin, 'Patient?_text=albatross'), [])
  t.same(await ids(admin, 'Patient?_text=cormorant'), [made.id])
  await admin.del(`Patient/${made.id}`)
  t.same(await ids(admin, 'Patient?_text=cormorant'), [])
  const rows = await services.database.query({
    text: 'select 1 from resource_text where id = $1',
    values: [made.id],
  })
  t.same(rows, [])
  await admin.put(`Patient/${made.id}`, { ...made, text: narrative('Wandering petrel') })
  t.same(await ids(admin, 'Patient?_text=petrel'), [made.id])
})

t.test('stores texts of any length and script', async (t) => {
  const distinct = (count: number, word: (i: number) => string) =>
    Array.from({ length: count }, (_, i) => word(i)).join(' ')
  const texts = [
    distinct(30_000, (i) => i.toString(36)),
    distinct(30_000, (i) => `${i.toString(36)}-x${i}/y`),
    distinct(40_000, (i) => String.fromCharCode(0x4e00 + (i % 20_000), 0x4e00 + i / 20_000)),
    distinct(20_000, (i) => `http://a${i}.b/c${i}?d`),
    'z'.repeat(300_000),
    'first \u0000 \ud800 last',
  ]
  for (const text of texts) {
    const extension = [{ url: 'http://example.org/remark', valueString: text }]
    const body = aPatient({ text: narrative('Long'), extension })
    const made = await admin.post<Raw>('Patient', body)
    t.equal(made.status, text.includes('\0') ? 400 : 201, text.slice(0, 40))
    if (made.status === 400) continue
    const [first = ''] = text.split(' ')
    if (first.length > 1000) continue
    const found = await ids(admin, `Patient?_content=${encodeURIComponent(first)}&_text=long`)
    t.ok(found.includes(made.body.id), text.slice(0, 40))
  }
  const open = { resourceType: 'Patient', text: narrative(`${'<!--'.repeat(20_000)} bracket`) }
  t.equal(extractResourceText(open).narrative.trim(), 'bracket')
})

t.test('finds no hidden elements by words', async (t) => {
  const hidden = await under({ resourceType: 'Patient', hiddenFields: ['address'] })
  for (const query of ['_text=kidney', '_content=kidney', '_text=kidney&_sort=_score']) {
    t.match(await hidden.get(`Patient?${query}`), { status: 403 }, query)
  }
  t.match(await hidden.get('Observation?subject:Patient._text=kidney'), { status: 403 })
  const partly = await under(
    { resourceType: 'Patient', criteria: `Patient?_id=${disease}` },
    { resourceType: 'Patient', hiddenFields: ['address'] },
  )
  t.same(await ids(partly, 'Patient?_content=kidney'), [disease])
  const narrowed = await under({ resourceType: 'Patient', criteria: `Patient?_id=${stones}` })
  const found = await narrowed.get<Raw>('Patient?_content=kidney&_total=accurate')
  t.same(found.body.total, 1)
  t.same(await ids(narrowed, 'Patient?_content=kidney'), [stones])
  const policy = { resourceType: 'AccessPolicy', resource: [] as object[] }
  policy.resource.push({ resourceType: 'Patient', criteria: 'Patient?_text=kidney' })
  t.equal((await admin.post('AccessPolicy', policy)).status, 400)
  t.match(await admin.get('ClientApplication?_content=secret'), { status: 400 })
  t.match(await superAdmin.get('User?_content=hash'), { status: 400 })
})

t.test('finds the published examples by exactly their words', async (t) => {
  const types = ['Practitioner', 'Condition', 'Observation', 'Encounter', 'Procedure']
  const sample = (await r4Examples()).filter(({ resourceType }) => types.includes(resourceType))
  const words = new Map<string, ReadonlySet<string>>()
  for (const example of sample) {
    const made = await admin.post<Raw>(example.resourceType, example)
    t.equal(made.status, 201, made.text)
    const div = String((example.text as Raw | undefined)?.div ?? '')
    const text = div.replace(/<[^>]*>/g, ' ').replace(/&\S+;/g, ' ')
    words.set(
      `${example.resourceType}/${made.body.id}`,
      new Set(text.toLowerCase().match(/[a-z0-9]{4,}/g)),
    )
  }
  t.equal(words.size, sample.length)
  t.ok(words.size > 3)
  await admin.create(aPractitioner())
  const all = [...new Set([...words.values()].flatMap((set) => [...set]))].sort()
  for (const word of all.filter((_, i) => i % 9 === 0)) {
    for (const type of types) {
      const expected = [...words]
        .filter(([reference, set]) => reference.startsWith(`${type}/`) && set.has(word))
        .map(([reference]) => reference.slice(type.length + 1))
      t.same((await ids(admin, `${type}?_text=${word}&_count=100`)).sort(), expected.sort(), word)
    }
  }
})

t.test('deletes the words when the feature is switched off', async (t) => {
  await change(project.id, switched(false))
  await until(async () => {
    const rows = await services.database.query({ text: 'select 1 from resource_text', values: [] })
    return rows.length === 0
  }, READY_MS)
  await until(async () => (await admin.get('Patient?_text=kidney')).status === 400, READY_MS)
  const unseen = await admin.create(noted('Between times'))
  await change(project.id, switched(true))
  await until(async () => (await admin.get('Patient?_text=early')).status === 200, READY_MS)
  t.same(await ids(admin, 'Patient?_text=between'), [unseen.id])
  t.same(await ids(admin, 'Patient?_text=early'), [early.id])
})
