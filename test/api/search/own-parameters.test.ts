import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import type { Client } from '../../fixtures/client.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'
import { memberUnder } from '../../fixtures/policy/policy.ts'
import { aPatient, aSearchParameter } from '../../fixtures/resources.ts'

const botica = await openBotica(t, { worker: true })
const { admin, services } = botica
const READY_MS = 60_000
const EYES = 'http://example.org/eyes'

function aParameter(changes: object = {}): Resource {
  return aSearchParameter({
    code: 'eyes',
    expression: `Patient.extension('${EYES}').value`,
    ...changes,
  })
}

function withEyes(colour: string): Resource {
  const coding = [{ system: 'urn:colour', code: colour }]
  return aPatient({ extension: [{ url: EYES, valueCodeableConcept: { coding } }] })
}

async function findIds(client: Client, query: string): Promise<string[]> {
  const { status, body } = await client.get<Raw>(query)
  if (status !== 200) throw new Error(`${query}: ${status} ${JSON.stringify(body)}`)
  return (body.entry ?? []).map((entry: Raw) => entry.resource.id).sort()
}

function ready(query: string, client = admin): Promise<void> {
  return until(async () => (await client.get(query)).status === 200, READY_MS)
}

t.test('finds resources stored before and after the parameter', async (t) => {
  const before = await admin.create(withEyes('blue'))
  const other = await admin.create(withEyes('green'))
  // The index waits for transactions that may have used older parameters.
  const { parameter, after } = await services.database.transaction(async (connection) => {
    await connection.query({ text: 'select pg_current_xact_id()', values: [] })
    const parameter = await admin.create(aParameter())
    t.match(await admin.get<Raw>('Patient?eyes=blue'), {
      status: 400,
      body: { issue: [{ details: { text: 'Search parameter eyes is not ready' } }] },
    })
    const after = await admin.create(withEyes('blue'))
    const { body: explained } = await admin.get<Raw>('Patient?eyes=blue&_explain=true')
    t.match(explained.entry[0].resource.issue[1], {
      code: 'incomplete',
      details: { text: /^Search parameter eyes is not ready: \d+ of \d+ resources are indexed$/ },
    })
    return { parameter, after }
  })
  await ready('Patient?eyes=blue')

  t.same(await findIds(admin, 'Patient?eyes=urn:colour|blue'), [before.id, after.id].sort())
  t.same(await findIds(admin, 'Patient?eyes:not=blue'), [other.id])
  t.same(await findIds(admin, 'Patient?_sort=-eyes&eyes=green,blue&_count=1'), [other.id])
  t.same(await findIds(admin, `Patient?_filter=${encodeURIComponent('eyes eq green')}`), [other.id])
  const observation = await admin.create({
    resourceType: 'Observation',
    status: 'final',
    code: { text: 'x' },
    subject: { reference: `Patient/${other.id}` },
  })
  t.same(await findIds(admin, 'Observation?patient.eyes=green'), [observation.id])

  const stranger = await botica.createTenant()
  t.match(await stranger.admin.get('Patient?eyes=blue'), {
    status: 400,
    body: { issue: [{ details: { text: 'Unknown search parameter: eyes' } }] },
  })
  await admin.del(`SearchParameter/${parameter.id}`)
  await until(async () => (await admin.get('Patient?eyes=blue')).status === 400, READY_MS)
  const { number } = (await services.principals.project(botica.project.id)) ?? {}
  await until(async () => {
    const rows = await services.database.query({
      text: `select 1 from job where project = $1 union all
        select 1 from indexed_parameter where project = $1`,
      values: [number],
    })
    return rows.length === 0
  }, READY_MS)
})

t.test('evaluates expressions beyond paths by the FHIRPath engine', async (t) => {
  const code = 'initial'
  const expression = "Patient.name.where(use = 'official').family.select(substring(0, 1))"
  const patient = await admin.create(aPatient({ name: [{ use: 'official', family: 'Quine' }] }))
  await admin.create(aParameter({ code, type: 'string', expression }))
  await ready(`Patient?${code}=q`)
  t.same(await findIds(admin, `Patient?${code}=q&_id=${patient.id}`), [patient.id])
  t.same(await findIds(admin, `Patient?${code}=u&_id=${patient.id}`), [])
})

t.test('finds nothing by an endless expression and blocks no other request', async (t) => {
  const nines = '(0)'
  const expression = `Patient.name.repeat('a').select(${nines}.repeat($this + 1)).count()`
  const made = await admin.post(
    'SearchParameter',
    aParameter({ code: 'endless', type: 'number', expression }),
  )
  t.equal(made.status, 201, made.text)
  const patient = await admin.create(aPatient({ name: [{ family: 'Patient' }] }))
  t.same(await findIds(admin, `Patient?name=patient&_id=${patient.id}`), [patient.id])
  await ready('Patient?endless=1')
  t.same(await findIds(admin, 'Patient?endless=ge0'), [])
})

t.test('searches by every kind of value and by components of one element', async (t) => {
  const KINDS: [string, object, string, string][] = [
    ['string', { expression: 'Patient.contact.name' }, 'Kontakt', 'Other'],
    ['date', { expression: 'Patient.identifier.period' }, 'ge2020-05', 'lt2019'],
    ['number', { expression: 'Patient.multipleBirth.ofType(integer)' }, '3', '4'],
    ['uri', { expression: 'Patient.identifier.system' }, 'urn:kinds', 'urn:other'],
    [
      'reference',
      { expression: 'Patient.contact.organization', target: ['Organization'] },
      'Organization/o',
      'o2',
    ],
    [
      'quantity',
      { expression: "Patient.extension('urn:weight').value" },
      '80000|http://unitsofmeasure.org|g',
      '81||kg',
    ],
    [
      'composite',
      {
        expression: 'Patient.contact',
        component: [
          {
            definition: 'http://hl7.org/fhir/SearchParameter/individual-gender',
            expression: 'gender',
          },
          {
            definition: 'http://hl7.org/fhir/SearchParameter/individual-family',
            expression: 'name',
          },
        ],
      },
      'female$kontakt',
      'male$kontakt',
    ],
  ]
  const patient = await admin.create(
    aPatient({
      identifier: [
        { system: 'urn:kinds', value: '1', period: { start: '2020-06-01', end: '2020-07-01' } },
      ],
      multipleBirthInteger: 3,
      extension: [
        {
          url: 'urn:weight',
          valueQuantity: { value: 80, unit: 'kg', code: 'kg', system: 'http://unitsofmeasure.org' },
        },
      ],
      contact: [
        {
          gender: 'female',
          name: { family: 'Kontakt' },
          organization: { reference: 'Organization/o' },
        },
        { gender: 'male', name: { family: 'Else' } },
      ],
    }),
  )
  for (const [type, changes] of KINDS) {
    await admin.create(aParameter({ ...changes, code: `own-${type}`, type }))
  }
  for (const [type, , yes, no] of KINDS) {
    await ready(`Patient?own-${type}=${yes}`)
    t.same(await findIds(admin, `Patient?own-${type}=${yes}`), [patient.id], type)
    t.same(await findIds(admin, `Patient?own-${type}=${no}`), [], type)
  }
  t.same(await findIds(admin, 'Patient?own-number:missing=false'), [patient.id])
  const { body } = await admin.get<Raw>('metadata')
  const { resource } = body.rest[0]
  const claimed = resource.find((item: Raw) => item.type === 'Patient')
  t.ok(claimed.searchParam.some((item: Raw) => item.name === 'own-date'))
  t.ok(claimed.searchInclude.includes('Patient:own-reference'))
  t.notMatch((await botica.anonymous.get('metadata')).text, 'own-date')
})

t.test('keeps parameters of one name in two Projects apart', async (t) => {
  const tenants = await Promise.all([botica.createTenant(), botica.createTenant()])
  const [one, two] = tenants.map((tenant) => tenant.admin)
  if (one === undefined || two === undefined) throw new Error('There are two')
  await one.create(aParameter({ code: 'what', expression: 'Patient.gender' }))
  await two.create(aParameter({ code: 'what', expression: 'Patient.language' }))
  const [first, second] = await Promise.all(
    [one, two].map((client) => client.create(aPatient({ gender: 'male', language: 'de' }))),
  )
  await Promise.all([ready('Patient?what=male', one), ready('Patient?what=de', two)])
  t.same(await findIds(one, 'Patient?what=male'), [first?.id])
  t.same(await findIds(one, 'Patient?what=de'), [])
  t.same(await findIds(two, 'Patient?what=de'), [second?.id])
  t.same(await findIds(two, 'Patient?what=male'), [])
})

t.test('applies a changed expression to all resources in every process', async (t) => {
  const { admin: client } = await botica.createTenant()
  const patient = await client.create(aPatient({ gender: 'male', language: 'de' }))
  const parameter = await client.create(aParameter({ code: 'what', expression: 'Patient.gender' }))
  await ready('Patient?what=male', client)
  const expression = 'Patient.language'
  t.equal(
    (await client.put(`SearchParameter/${parameter.id}`, { ...parameter, expression })).status,
    200,
  )
  const elsewhere = await botica.startWeb()
  const other = { ...client, get: (path: string) => askAt(elsewhere, client, path) }
  for (const asked of [client, other]) {
    await until(async () => (await idsIn(asked, 'Patient?what=de')).includes(patient.id), READY_MS)
    t.same(await idsIn(asked, 'Patient?what=male'), [])
  }
})

t.test('rejects invalid parameters and names the element', async (t) => {
  const REFUSED: [object, string, RegExp][] = [
    [{ code: 'name' }, 'code', /^Patient has a search parameter name already: http/],
    [{ code: 'eyes!' }, 'code', /cannot be called/],
    [{ code: '_eyes' }, 'code', /cannot be called/],
    [{ base: ['Binary'] }, 'base', /not a searchable resource type/],
    [
      { base: ['User'], expression: 'User.email', type: 'string' },
      'base',
      /no search parameters of a Project/,
    ],
    [{ type: 'special' }, 'type', /not supported/],
    [{ expression: undefined }, 'expression', /no expression/],
    [{ expression: 'Patient.nmae' }, 'expression', /no element "nmae"/],
    [{ expression: 'Patient.name' }, 'expression', /cannot read HumanName/],
    [{ expression: 'Patient.name.(' }, 'expression', /FHIRPath/],
    [{ expression: 'Observation.code' }, 'expression', /no expression for Patient/],
    [{ expression: `Patient.name${'.first()'.repeat(500)}` }, 'expression', /FHIRPath/],
    [{ type: 'composite', expression: 'Patient' }, 'component', /two components/],
  ]
  for (const [changes, element, text] of REFUSED) {
    const { status, body } = await admin.post<Raw>(
      'SearchParameter',
      aParameter({ code: 'eyes2', ...changes }),
    )
    t.equal(status, 400, JSON.stringify(changes))
    t.match(body.issue?.[0], { details: { text }, expression: [`SearchParameter.${element}`] })
    const draft = aParameter({ code: 'eyes2', ...changes, status: 'draft' })
    if (element !== 'type')
      t.equal((await admin.post('SearchParameter', draft)).status, 201, element)
  }
  t.equal((await admin.post('SearchParameter', aParameter({ code: 'twice' }))).status, 201)
  const { status, body } = await admin.post<Raw>('SearchParameter', aParameter({ code: 'twice' }))
  t.equal(status, 400)
  t.match(body.issue[0].details.text, /already: SearchParameter\//)
})

async function askAt(address: string, client: Client, path: string) {
  const headers = { Authorization: `Bearer ${client.token}` }
  const response = await fetch(new URL(`fhir/R4/${path}`, address), { headers })
  return { status: response.status, body: (await response.json()) as Raw }
}

async function idsIn(
  client: { get(path: string): Promise<{ status: number; body: Raw }> },
  query: string,
): Promise<string[]> {
  const { status, body } = await client.get(query)
  return status === 200 ? (body.entry ?? []).map((entry: Raw) => entry.resource.id) : []
}

t.test('accepts a parameter of the Project in policy criteria', async (t) => {
  const colour = aParameter({ code: 'policy-eyes' })
  await admin.create(colour)
  await ready('Patient?policy-eyes=blue')
  const policyEntry = (query: string) => ({ resourceType: 'Patient', criteria: `Patient?${query}` })
  const refused = { resourceType: 'AccessPolicy', resource: [policyEntry('no-eyes=blue')] }
  t.match(await admin.post('AccessPolicy', refused), {
    status: 400,
    body: { issue: [{ expression: ['AccessPolicy.resource[0]'] }] },
  })
  const [blue, green] = await Promise.all(
    ['blue', 'green'].map((one) => admin.create(withEyes(one))),
  )
  for (const query of ['policy-eyes=blue', 'policy-eyes:not=green']) {
    const { client } = await memberUnder(botica, { entries: [policyEntry(query)] })
    const found = await findIds(client, 'Patient?_count=100')
    t.ok(found.includes(blue?.id ?? ''), query)
    t.notOk(found.includes(green?.id ?? ''), query)
    t.equal((await client.get(`Patient/${blue?.id}`)).status, 200)
    t.equal((await client.get(`Patient/${green?.id}`)).status, 404)
    t.equal((await client.post('Patient', withEyes('green'))).status, 403)
    t.equal((await client.post('Patient', withEyes('blue'))).status, 201)
  }
})
