/** An object with a name twice has no one meaning: https://hl7.org/fhir/R4/json.html asks for unique names. */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import { aBot, execute, handler } from '../../fixtures/bots/bots.ts'
import type { Answer } from '../../fixtures/client.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { aPatient } from '../../fixtures/resources.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const env = {
  // The parts of imports are in the database, which all files share.
  DATABASE_URL: await createDatabase(t),
  BOT_TIMEOUT_MS: '100000',
  EXECUTE_WAIT_MS: '110000',
}
const botica = await openBotica(t, { worker: true, env })
const { admin, superAdmin, project } = botica
const fhir = { 'Content-Type': 'application/fhir+json' }
const json = { 'Content-Type': 'application/json' }
const patient = await admin.create(aPatient())
const observation = '"status":"final","code":{"text":"x"}'

const TWICE = { code: 'structure', details: { text: /^Property given more than once: / } }
const refusal = (path: string) => ({
  status: 400,
  body: { resourceType: 'OperationOutcome', issue: [{ ...TWICE, expression: [path] }] },
})

const resources: [text: string, path: string][] = [
  ['{"resourceType":"Patient","name":[{"family":"A"}],"name":[{"family":"B"}]}', 'Patient.name'],
  ['{"resourceType":"Patient","gender":"male","g\\u0065nder":"female"}', 'Patient.gender'],
  ['{"resourceType":"Patient","meta":{"tag":[]},"meta":{}}', 'Patient.meta'],
  ['{"resourceType" : "Patient","active" : true,\n"active"\t: true}', 'Patient.active'],
  ['{"active":true,"resourceType":"Patient","resourceType":"Patient"}', 'Patient.resourceType'],
  [
    '{"resourceType":"Patient","name":[{"family":"A"},{"given":["\\":","b"],"use":"usual","use":"old"}]}',
    'Patient.name[1].use',
  ],
  [
    `{"resourceType":"Patient","contained":[{"resourceType":"Observation",${observation},"status":"final"}]}`,
    'Patient.contained[0].status',
  ],
]
for (const [text, path] of resources) {
  t.test(`rejects ${path} given twice on create, update and $validate`, async (t) => {
    t.match(await admin.post('Patient', text, fhir), refusal(path))
    const withId = text.replace('{', `{"id":"${patient.id}",`)
    t.match(await admin.put(`Patient/${patient.id}`, withId, fhir), refusal(path))
    t.match(await admin.put(`Patient?_id=${patient.id}`, withId, fhir), refusal(path))
    t.match(await admin.post('Patient/$validate', text, fhir), refusal(path))
  })
}

t.test('accepts texts that only look like a repeated name', async (t) => {
  const family = 'a":1,"a":2'
  const text = JSON.stringify({ ...aPatient(), name: [{ family, given: [':', '":'] }, { family }] })
  const made = await admin.post('Patient', text, fhir)
  t.match(made, { status: 201, body: { name: [{ family, given: [':', '":'] }, { family }] } })
  t.match(await admin.post('Patient', '{"resourceType" :\n"Patient"}', fhir), { status: 201 })
})

t.test('rejects repeated names in bundles and does nothing of them', async (t) => {
  const value = randomUUID()
  const entry = (resource: string) =>
    `{"request":{"method":"POST","url":"Patient"},"resource":${resource}}`
  const first = entry(`{"resourceType":"Patient","identifier":[{"value":"${value}"}]}`)
  const second = entry('{"resourceType":"Patient","gender":"male","gender":"female"}')
  for (const type of ['batch', 'transaction']) {
    const bundle = `{"resourceType":"Bundle","type":"${type}","entry":[${first},${second}]}`
    t.match(await admin.post('', bundle, fhir), refusal('Bundle.entry[1].resource.gender'))
  }
  t.match((await admin.get(`Patient?identifier=${value}&_summary=count`)).body, { total: 0 })
  const patch = Buffer.from('[{"op":"add","path":"/active","value":true,"value":false}]')
  const patching = {
    resourceType: 'Bundle',
    type: 'transaction',
    entry: [
      {
        request: { method: 'PATCH', url: `Patient/${patient.id}` },
        resource: {
          resourceType: 'Binary',
          contentType: 'application/json-patch+json',
          data: patch.toString('base64'),
        },
      },
    ],
  }
  t.match(await admin.post('', patching), { status: 400, body: { issue: [TWICE] } })
})

t.test('rejects repeated names in patches', async (t) => {
  const path = `Patient/${patient.id}`
  const type = { 'Content-Type': 'application/json-patch+json' }
  const twice = '[{"op":"test","path":"/id","path":"/x"}]'
  t.match(await admin.patch(path, twice, type), refusal('[0].path'))
  const nested = '[{"op":"add","path":"/name","value":[{"use":"usual","use":"old"}]}]'
  t.match(await admin.patch(path, nested, type), refusal('[0].value[0].use'))
  const parameters =
    '{"resourceType":"Parameters","parameter":[{"name":"operation","name":"x","part":[]}]}'
  t.match(await admin.patch(path, parameters, fhir), refusal('Parameters.parameter[0].name'))
})

t.test('rejects repeated names in a policy, where the last would widen it', async (t) => {
  const policy =
    '{"resourceType":"AccessPolicy","name":"x","resource":[{"resourceType":"Patient","readonly":true,"readonly":false}]}'
  t.match(
    await admin.post('AccessPolicy', policy, fhir),
    refusal('AccessPolicy.resource[0].readonly'),
  )
})

t.test('rejects repeated names in GraphQL requests', async (t) => {
  const query = 'mutation ($res: PatientCreate!) { PatientCreate(res: $res) { id } }'
  const variables = '{"res":{"resourceType":"Patient","gender":"male","gender":"female"}}'
  const body = `{"query":${JSON.stringify(query)},"variables":${variables}}`
  const answer = await admin.post('$graphql', body, json)
  t.match(answer, { status: 400 })
  t.match(answer.text, /variables\.res\.gender/)
  const foreign = await admin.post('$graphql', body, { ...json, Accept: 'application/json' })
  t.match(foreign.body, { errors: [{ message: /variables\.res\.gender/ }] })
  const read = encodeURIComponent('query ($n: Int) { PatientList(_count: $n) { id } }')
  t.match(await admin.get(`$graphql?query=${read}&variables={"n":1,"n":2}`), refusal('n'))
  const twice = await admin.post('$graphql', '{"query":"{ x }","query":"{ y }"}', json)
  t.match(twice, { status: 400 })
  t.match(twice.text, /more than once/)
  const literal =
    'mutation { PatientCreate(res: {resourceType: "Patient", gender: "male", gender: "female"}) { id } }'
  const inQuery = await admin.post('$graphql', { query: literal }, json)
  t.match(inQuery.text, /There can be only one input field named \\"gender\\"/)
})

t.test('rejects repeated names in administrative, SCIM and OAuth bodies', async (t) => {
  const invited = `{"resourceType":"Patient","firstName":"A","lastName":"B","membership":{"admin":false,"admin":true}}`
  const place = `/admin/projects/${project.id}`
  t.match(await admin.post(`${place}/invite`, invited, json), refusal('Patient.membership.admin'))
  t.match(await admin.post(`${place}/client`, '{"name":"a","name":"b"}', json), refusal('name'))
  const named = '{"resourceType":"Project","name":"a","name":"b"}'
  t.match(await superAdmin.post('/admin/Project/', named, fhir), refusal('Project.name'))
  const scim = { 'Content-Type': 'application/scim+json' }
  const user = '{"userName":"a@example.com","userName":"b@example.com"}'
  t.match(await admin.post('/scim/v2/Users', user, scim), {
    status: 400,
    body: { status: '400', detail: /more than once: userName/ },
  })
  const client = '{"redirect_uris":["http://127.0.0.1"],"redirect_uris":[]}'
  t.match(await admin.post('/oauth2/register', client, json), {
    status: 400,
    body: { error: 'invalid_request', error_description: /more than once/ },
  })
  const login = '{"email":"a@example.com","email":"b@example.com"}'
  t.match(await admin.post('/auth/login', login, json), refusal('email'))
})

t.test('rejects the line of an import that repeats a name, and takes the others', async (t) => {
  const [good, bad] = [randomUUID(), randomUUID()]
  const lines = `{"resourceType":"Patient","id":"${good}"}\n{"resourceType":"Patient","id":"${bad}","active":true,"active":false}\n`
  const file = await admin.post('Binary', lines, { 'Content-Type': 'application/fhir+ndjson' })
  const started = await admin.post(
    '$import',
    {
      resourceType: 'Parameters',
      parameter: [
        { name: 'inputFormat', valueCode: 'application/fhir+ndjson' },
        {
          name: 'input',
          part: [
            { name: 'type', valueCode: 'Patient' },
            { name: 'url', valueUrl: `Binary/${file.body.id}` },
          ],
        },
      ],
    },
    { Prefer: 'respond-async' },
  )
  t.equal(started.status, 202)
  const status = started.headers.get('content-location') ?? ''
  let done: Answer | undefined
  await until(async () => {
    done = await admin.get(status)
    return done.status !== 202
  }, 90_000)
  const manifest = done?.body as { error?: readonly { url: string }[] } | undefined
  t.match((await admin.get(manifest?.error?.[0]?.url ?? '')).text, /Patient\.active/)
  t.equal((await admin.get(`Patient/${good}`)).status, 200)
  t.equal((await admin.get(`Patient/${bad}`)).status, 404)
})

t.test('rejects JSON text with repeated names from a bot', async (t) => {
  const text = '{"resourceType":"Patient","gender":"male","gender":"female"}'
  const bot = await aBot(
    botica,
    handler(`
      try { return await medplum.post('fhir/R4/Patient', ${JSON.stringify(text)}, 'application/fhir+json') }
      catch (error) { return error.outcome }`),
  )
  t.match((await execute(admin, bot)).body, {
    issue: [{ ...TWICE, expression: ['Patient.gender'] }],
  })
})

t.test(
  'rejects a resource with repeated names as the input of a bot, and passes other JSON on',
  async (t) => {
    const bot = await aBot(botica, handler('return event.input.gender'))
    const text = '{"resourceType":"Patient","gender":"male","gender":"female"}'
    t.match(await admin.post(`Bot/${bot}/$execute`, text, fhir), refusal('Patient.gender'))
    const opaque = await admin.post(`Bot/${bot}/$execute`, text, json)
    t.match(opaque, { status: 200, text: 'female' })
  },
)

t.test('finds a repeated name among very many in time', async (t) => {
  const names = Array.from({ length: 50_000 }, (_, n) => `"x${n}":":"`)
  const text = `{"resourceType":"Patient",${names.join(',')},"x7":1}`
  t.match(await admin.post<Resource>('Patient', text, fhir), refusal('Patient.x7'))
})
