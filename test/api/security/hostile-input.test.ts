import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Answer } from '../../fixtures/client.ts'
import type { Resource } from '../../fixtures/fhir.ts'

const botica = await openBotica(t)
const { admin, superAdmin, anonymous, services, project } = botica
const json = { 'Content-Type': 'application/fhir+json' }
const form = { 'Content-Type': 'application/x-www-form-urlencoded' }

const aPatient = (members: string) => `{"resourceType":"Patient",${members}}`
const post = (body: string | Uint8Array) => admin.post('Patient', body, json)
const nested = (levels: number, open: string, close: string, inner = '') =>
  open.repeat(levels) + inner + close.repeat(levels)

interface Outcome extends Resource {
  readonly issue: readonly { readonly details: { readonly text: string } }[]
}

function errorText({ body, text }: Answer): string {
  return (body as Partial<Outcome>).issue?.[0]?.details.text ?? text
}

const REFUSED: [name: string, body: string | Uint8Array, text: string][] = [
  ['a NUL in a string', aPatient('"name":[{"family":"a\\u0000"}]'), 'Null bytes are not allowed'],
  ['a NUL in a key', aPatient('"a\\u0000":1'), 'Null bytes are not allowed'],
  ['a bare NUL', aPatient('"gender":"\0"'), 'Content could not be parsed'],
  ['invalid UTF-8', Buffer.from([0x7b, 0xff, 0x7d]), 'Content could not be parsed'],
  ['UTF-16', Buffer.from(aPatient('"active":true'), 'utf16le'), 'Content could not be parsed'],
  ['a mark alone', '\uFEFF', 'Content could not be parsed'],
  ['half a body', '{"resourceType":"Pat', 'Content could not be parsed'],
  ['a key __proto__', aPatient('"__proto__":{"active":true}'), 'Invalid additional property'],
  ['a key constructor', aPatient('"constructor":{"a":1}'), 'Invalid additional property'],
  ['__proto__ below', aPatient('"name":[{"__proto__":{"text":"x"}}]'), 'Invalid additional prop'],
  ['type __proto__', '{"resourceType":"__proto__"}', 'Incorrect resource type'],
  ['type constructor', '{"resourceType":"constructor"}', 'Incorrect resource type'],
  ['a type that is a list', '{"resourceType":["Patient"]}', 'Incorrect resource type'],
  ['a number beyond 64 bits', aPatient('"multipleBirthInteger":1e400'), 'Invalid numeric value'],
  ['a large integer', aPatient('"multipleBirthInteger":99999999999'), 'Invalid numeric value'],
  ['65 levels', `{"a":${nested(64, '[', ']')}}`, 'JSON is nested deeper than 64 levels'],
  ['a million levels', nested(1_000_000, '[', ']'), 'JSON is nested deeper'],
  ['a million levels begun', '{"a":'.repeat(1_000_000), 'Content could not be parsed'],
  ['levels around a decimal', nested(100_000, '[', ']', '1.0'), 'Content could not be parsed'],
]

for (const [name, body, text] of REFUSED) {
  t.test(`rejects ${name} with an OperationOutcome`, async (t) => {
    const answer = await post(body)
    t.equal(answer.status, 400)
    t.match(errorText(answer), text)
    const asUpdate = await admin.put(`Patient/${randomUUID()}`, body, json)
    t.equal(asUpdate.status, 400, 'in an update')
    t.equal((await admin.post('', body, json)).status, 400, 'as a bundle')
    // Admin routes take small bodies only.
    const atAdmin = body.length > 256 * 1024 ? 413 : 400
    t.equal(
      (await superAdmin.post('/admin/Project', body, json)).status,
      atAdmin,
      'at an admin route',
    )
    const patch = { 'Content-Type': 'application/json-patch+json' }
    t.equal((await admin.patch(`Patient/${randomUUID()}`, body, patch)).status, 400, 'in a patch')
  })
}

t.test('ignores a byte order mark', async (t) => {
  t.equal((await post(`\uFEFF${aPatient('"active":true')}`)).status, 201)
  const marked = '\uFEFF{"resourceType":"Project","name":"Marked"}'
  t.equal((await superAdmin.post('/admin/Project', marked, json)).status, 201)
})

t.test('rejects a repeated key and stores nothing', async (t) => {
  const made = await post(aPatient('"gender":"male","gender":"female"'))
  t.match(made, { status: 400, body: { issue: [{ expression: ['Patient.gender'] }] } })
})

t.test('accepts 64 levels', async (t) => {
  const value = '"valueCode":"x","_valueCode":{"id":"x"}'
  const extensions = nested(31, '"extension":[{"url":"http://example.org/",', '}]', value)
  const body = aPatient(extensions)
  const made = await post(body)
  t.equal(made.status, 201, errorText(made))
  const inner = '{"extension":[{"url":"http://example.org/","valueCode":"x"}]}'
  t.match(errorText(await post(body.replace('{"id":"x"}', inner))), 'nested deeper than 64')
})

t.test('keeps a lone surrogate as it was escaped', async (t) => {
  const members =
    '"identifier":[{"system":"urn:\\udc00","value":"\\ud800"}],"name":[{"family":"a\\ud83d"}],' +
    '"maritalStatus":{"coding":[{"system":"urn:\\ud800","code":"\\udfff","display":"\\ud800"}]}'
  const made = await post(aPatient(members))
  t.equal(made.status, 201, errorText(made))
  const read = await admin.get(`Patient/${made.body.id}`)
  t.ok(read.text.endsWith(`,${members}}`))
  const change = [{ op: 'add', path: '/name/0/given', value: ['\ud800'] }]
  t.equal((await admin.patch(`Patient/${made.body.id}`, change)).status, 200)
  t.equal((await admin.get('Patient?family=a%EF%BF%BD')).status, 200)
  t.equal((await admin.get('Patient?_sort=identifier')).status, 200)
})

t.test('accepts a body of 16 MiB and rejects a larger one', async (t) => {
  const limit = 16 * 1024 * 1024
  const sized = (bytes: number) => {
    const [head, tail] = aPatient(
      '"text":{"status":"generated","div":"<div xmlns=\\"http://www.w3.org/1999/xhtml\\">|</div>"}',
    ).split('|')
    return `${head}${'x'.repeat(bytes - `${head}${tail}`.length)}${tail}`
  }
  const made = await post(sized(limit))
  t.equal(made.status, 201)
  t.equal((await admin.get(`Patient/${made.body.id}`)).text.length, made.text.length)
  const refused = await post(sized(limit + 1))
  t.equal(refused.status, 413)
  t.match(refused.body, { issue: [{ code: 'too-long', details: { text: 'File too large' } }] })
})

t.test('rejects resources with too many index values as too costly', async (t) => {
  const many = (count: number, make: (i: number) => unknown) =>
    Array.from({ length: count }, (_, i) => make(i))
  const list = {
    resourceType: 'List',
    status: 'current',
    mode: 'working',
    entry: many(40_000, (i) => ({ item: { reference: `Patient/${i}` } })),
  }
  t.match(await admin.post('List', list), {
    status: 400,
    body: { issue: [{ code: 'too-costly' }] },
  })
  const patient = { resourceType: 'Patient', name: many(100_001, (i) => ({ family: `f${i}` })) }
  t.match(await admin.post('Patient', patient), {
    status: 400,
    body: { issue: [{ code: 'too-costly' }] },
  })
})

const TIMES = [
  '0001-01-01',
  '0001-01-01T00:00:00+14:00',
  '9999-12-31',
  '9999-12-31T23:59:59-12:00',
  '9999-12-31T23:59:60Z',
  '2016-12-31T23:59:59.12345678901234567890+14:00',
]

t.test('stores and finds the earliest and latest times', async (t) => {
  const tenant = await botica.createTenant()
  for (const time of TIMES) {
    const made = await tenant.admin.create({
      resourceType: 'Observation',
      status: 'final',
      code: { text: 'x' },
      effectiveDateTime: time,
    })
    const { status, body } = await tenant.admin.get<
      Resource & { entry?: { resource: Resource }[] }
    >(`Observation?date=${encodeURIComponent(time)}`)
    t.equal(status, 200, time)
    t.ok(
      body.entry?.some(({ resource }) => resource.id === made.id),
      time,
    )
    for (const query of ['date=ap', 'date=sa', 'date=le', '_lastUpdated=gt', '_lastUpdated=lt']) {
      const found = await tenant.admin.get(`Observation?${query}${encodeURIComponent(time)}`)
      t.equal(found.status, 200, query + time)
    }
  }
})

t.test('accepts only valid resources at an admin route', async (t) => {
  const odd = '{"resourceType":"Project","name":"Odd","colour":"red"}'
  t.equal(
    errorText(await superAdmin.post('/admin/Project', odd, json)),
    'Invalid additional property "colour"',
  )
  const path = `/admin/projects/${project.id}/settings`
  const set = (value: string) => admin.post(path, `[{"name":"RATE","valueDecimal":${value}}]`, json)
  t.equal((await set('1e400')).status, 400)
  t.equal((await set('"1"')).status, 400)
  t.match((await set('1.50')).text, '"valueDecimal":1.50')
  t.match((await admin.get(`/admin/projects/${project.id}`)).text, '"valueDecimal":1.50')
})

t.test('rejects settings of the service that would not apply', async (t) => {
  const tenant = await botica.createTenant()
  const path = `/admin/projects/${tenant.project.id}/settings`
  const on = { name: 'mfaRequired', valueBoolean: true }
  const cases: readonly [settings: readonly object[], text: string, expression: string][] = [
    [
      [{ name: 'mfaRequired', valueString: 'true' }],
      'mfaRequired must have a valueBoolean',
      'Project.setting[0]',
    ],
    [
      [on, { name: 'botDeclarationsRequired', valueInteger: 1 }],
      'botDeclarationsRequired must have a valueBoolean',
      'Project.setting[1]',
    ],
    [
      [{ name: 'validateQuestionnaireResponse', valueString: 'reject' }],
      'validateQuestionnaireResponse must be "refuse"; without it, the default applies',
      'Project.setting[0]',
    ],
    [
      [on, { name: 'updateAsCreate', valueBoolean: true }],
      'updateAsCreate belongs to Project.systemSetting',
      'Project.setting[1]',
    ],
    [
      [{ name: 'deadLetterMail', valueString: 'ops@example.org, team' }],
      'deadLetterMail must list at most 10 e-mail addresses, with commas',
      'Project.setting[0]',
    ],
    [
      [on, { name: 'mfaRequired', valueBoolean: false }],
      'mfaRequired may be given once',
      'Project.setting[1]',
    ],
  ]
  for (const [settings, text, expression] of cases) {
    const answer = await tenant.admin.post<Outcome>(path, JSON.stringify(settings), json)
    t.equal(answer.status, 400)
    t.match(answer.body.issue[0], { details: { text }, expression: [expression] })
  }
  const secrets = ['a', 'b'].map((valueString) => ({ name: 'KEY', valueString }))
  const twice = await tenant.admin.post<Outcome>(
    `/admin/projects/${tenant.project.id}/secrets`,
    JSON.stringify(secrets),
    json,
  )
  t.equal(errorText(twice), 'The secret KEY may be given once')
  t.match(twice.body, { issue: [{ expression: ['Project.secret[1]'] }] })
  const systemSetting = [{ name: 'botConcurrency', valueString: '1' }]
  const stored = { ...tenant.project, systemSetting }
  const answer = await superAdmin.put(`Project/${tenant.project.id}`, stored)
  t.equal(errorText(answer), 'botConcurrency must have a valueInteger')
  const negative = [{ name: 'botConcurrency', valueInteger: -1 }]
  const project = { ...tenant.project, systemSetting: negative }
  const less = await superAdmin.put(`Project/${tenant.project.id}`, project)
  t.equal(errorText(less), 'botConcurrency must not be negative')
  const option = [{ id: 'fhirQuota', valueString: '10' }]
  const limits = await tenant.admin.post('UserConfiguration', {
    resourceType: 'UserConfiguration',
    option,
  })
  t.equal(errorText(limits), 'fhirQuota must have a valueInteger')
  const own = [on, { name: 'mine', valueString: 'a' }, { name: 'mine', valueBoolean: true }]
  t.equal((await tenant.admin.post(path, JSON.stringify(own), json)).status, 200)
})

const PATHS: [path: string, status: number][] = [
  ['Patient/%00', 404],
  ['Patient/%E0%A4%A', 404],
  ['Patient/__proto__', 404],
  ['Patient/constructor/_history/1', 404],
  ['Patient/1/_history/99999999999999999999', 404],
  ['Patient/1/$constructor', 404],
  ['constructor/1', 400],
  ['__proto__', 404],
  ['toString', 400],
  ['Patient?%00=1', 400],
  ['Patient?name=%00', 400],
  ['Patient?identifier=%00|', 400],
  ['Patient?_id=%00', 400],
  ['Patient?_sort=%00', 400],
  ['Patient?_cursor=%00', 400],
  ['Patient?__proto__=x', 400],
  ['Patient?constructor=x', 400],
  ['Patient?name:__proto__=x', 400],
  ['Patient?general-practitioner:constructor=x', 400],
  ['Patient?_total=__proto__', 400],
  ['Patient?_format=__proto__', 406],
  ['Patient?_elements=__proto__', 200],
  ['Patient?_elements=constructor.x', 200],
  ['Patient?identifier=%ED%A0%80|x', 400],
  ['Patient?_count=99999999999999999999', 200],
  ['Patient?_offset=99999999999999999999', 400],
  [`Patient?name=${'x'.repeat(20_000)}`, 200],
  [`Observation?code=${'a,'.repeat(1001)}`, 400],
  ['Observation?value-quantity=1e999', 400],
  [`Observation?value-quantity=${'1'.repeat(400)}`, 400],
  ['Observation?value-quantity=ap1e308', 200],
  ['Observation?value-quantity=gt-1e308', 200],
]

t.test('returns no 5xx for any URL', async (t) => {
  for (const [path, status] of PATHS) {
    t.equal((await admin.get(path)).status, status, path.slice(0, 60))
  }
})

const PATCHES = [
  '[{"op":"add","path":"/__proto__/polluted","value":1}]',
  '[{"op":"add","path":"/constructor/prototype/polluted","value":1}]',
  '[{"op":"copy","from":"/__proto__","path":"/name"}]',
  '[{"op":"add","path":"/name","value":[{"family":"\\u0000"}]}]',
  '[{"op":"add","path":"/name/99999999999","value":{}}]',
  '[{"op":"replace","path":"","value":[]}]',
  '[{"op":"__proto__"}]',
  '{"__proto__":[]}',
  '[null]',
  'null',
  '""',
]

t.test('applies no patch outside the resource', async (t) => {
  const { body } = await post(aPatient('"active":true'))
  for (const patch of PATCHES) {
    const headers = { 'Content-Type': 'application/json-patch+json' }
    t.equal((await admin.patch(`Patient/${body.id}`, patch, headers)).status, 400, patch)
  }
  t.equal((await admin.get(`Patient/${body.id}`)).body.meta?.versionId, '1')
  t.equal('polluted' in {}, false)
})

const ENTRIES = [
  'null',
  '1',
  '{}',
  '{"request":1}',
  '{"request":{"method":"GET","url":5}}',
  '{"request":{"method":"__proto__","url":"Patient"}}',
  '{"request":{"method":"GET","url":"Patient/%00"}}',
  '{"request":{"method":"GET","url":"Patient?name=%00"}}',
  '{"request":{"method":"GET","url":"https://example.org/Patient/1"}}',
  '{"request":{"method":"POST","url":"Patient","ifNoneExist":"name=%00"},"resource":{"resourceType":"Patient"}}',
  '{"request":{"method":"PATCH","url":"Patient/1"},"resource":{"resourceType":"Binary","data":"%"}}',
  '{"request":{"method":"PUT","url":"Patient/1","ifMatch":"W/\\"99999999999999\\""},"resource":{"resourceType":"Patient","id":"1"}}',
]

t.test('returns no 5xx for any bundle entry', async (t) => {
  for (const entry of ENTRIES) {
    const bundle = (type: string) =>
      admin.post('', `{"resourceType":"Bundle","type":"${type}","entry":[${entry}]}`, json)
    const batch = await bundle('batch')
    t.equal(batch.status, 200, entry)
    t.match(batch.text, /"status":"4\d\d"/, entry)
    const { status } = await bundle('transaction')
    t.ok(status >= 400 && status < 500, entry)
  }
})

t.test('returns no 5xx for any credentials or form', async (t) => {
  const token = (body: string) => anonymous.post('/oauth2/token', body, form)
  const client = 'grant_type=client_credentials&client_secret=%00&client_id='
  for (const id of ['%00', '__proto__', '%ED%A0%80']) {
    t.equal((await token(client + id)).status, 401, id)
  }
  t.equal((await token('grant_type=%00')).status, 400)
  for (const text of ['\0:\0', ':', '__proto__:x']) {
    const Authorization = `Basic ${Buffer.from(text).toString('base64')}`
    t.equal((await anonymous.get('Patient', { Authorization })).status, 401)
  }
  t.equal((await admin.post('Patient/_search', 'name=%00', form)).status, 400)
  t.equal((await admin.post('Patient/_search', '{"__proto__":"x"}', json)).status, 400)
  t.equal((await admin.post('Patient/_search', '{"name":[null]}', json)).status, 400)
})

t.test('passes UTF-8 to a bot unchanged and rejects other encodings', async (t) => {
  const bot = await admin.post(`/admin/projects/${project.id}/bot`, { name: 'Reader' })
  const path = `Bot/${bot.body.id}`
  const latin = Buffer.from('MSH|^~\\&|A|B|C|D|20260101||ADT^A01|1|P|2.5\rPID|1||Müller', 'latin1')
  const code = Buffer.from('{"code":"exports.handler = async () => \'ü\'"}', 'latin1')
  t.equal((await admin.post(`${path}/$deploy`, code, json)).status, 400)
  t.equal((await superAdmin.post('Project/$init', code, json)).status, 400)
  const deployed = await admin.post(`${path}/$deploy`, {
    code: 'exports.handler = async () => 1',
    filename: 'index.js',
  })
  t.equal(deployed.status, 200)
  for (const type of ['x-application/hl7-v2+er7', 'text/plain', 'application/json']) {
    const answer = await admin.post(`${path}/$execute`, latin, { 'Content-Type': type })
    t.equal(answer.status, 400, type)
    t.equal(errorText(answer), 'Content could not be parsed')
  }
})

t.test('leaves the database consistent', async (t) => {
  const { database } = services
  const [odd] = await database.query<Record<string, string>>({
    text: `with own as (select project from tenant where fhir_id = $1)
      select
        (select count(*) from resource r join own using (project) where not exists (
          select from version v where v.content is not null
            and (v.project, v.type, v.id, v.ver) = (r.project, r.type, r.id, r.ver))) as unversioned,
        (select count(*) from idx_string s join own using (project) where not exists (
          select from resource r where (r.project, r.type, r.id) = (s.project, s.type, s.id)))
          as lost_strings,
        (select count(*) from idx_range s join own using (project) where not exists (
          select from resource r where (r.project, r.type, r.id) = (s.project, s.type, s.id)))
          as lost_ranges`,
    values: [project.id],
  })
  t.same(odd, { unversioned: '0', lost_strings: '0', lost_ranges: '0' })
})
