/** Imports the sweep of keys, which a worker starts only after a day. */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import { removeOldRequests } from '../../../shared/store/write/requests.ts'
import { openBotica } from '../../fixtures/botica.ts'
import { anObservation, aPatient, MRN_SYSTEM } from '../../fixtures/resources.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const botica = await openBotica(t, {
  // A test reads the newest request from the database, which is otherwise shared.
  env: { DATABASE_URL: await createDatabase(t) },
})
const { client } = await botica.createMember()
const { database } = botica.services

const withKey = (key: string = randomUUID()) => ({ 'Idempotency-Key': key })
const aMarked = (value: string) => aPatient({ identifier: [{ system: MRN_SYSTEM, value }] })
async function countMatches(value: string): Promise<number> {
  const found = await client.get(`Patient?identifier=${MRN_SYSTEM}|${value}&_total=accurate`)
  return Number(found.body.total)
}

t.test('replays the response to a repeated create', async (t) => {
  const mrn = randomUUID()
  const key = withKey()
  const body = aMarked(mrn)
  const first = await client.post('Patient', body, key)
  const again = await client.post('Patient', body, key)
  t.equal(first.status, 201)
  t.equal(again.status, 201)
  t.equal(again.text, first.text)
  for (const name of ['etag', 'location', 'last-modified', 'content-type']) {
    t.equal(again.headers.get(name), first.headers.get(name), name)
  }
  t.equal(await countMatches(mrn), 1)
})

t.test('replays the responses to a repeated bundle, update, patch and delete', async (t) => {
  const made = await client.create(aPatient())
  const path = `Patient/${made.id}`
  const bundle = {
    resourceType: 'Bundle',
    type: 'transaction',
    entry: [{ request: { method: 'POST', url: 'Observation' }, resource: anObservation(path) }],
  }
  const patch = [{ op: 'replace', path: '/gender', value: 'other' }]
  const [a, b, c, d] = [withKey(), withKey(), withKey(), withKey()]
  const send: (() => ReturnType<typeof client.get>)[] = [
    () => client.post('', bundle, a),
    () => client.put(path, { ...made, gender: 'female' }, b),
    () => client.patch(path, patch, c),
    () => client.del(path, d),
  ]
  for (const again of send) {
    const first = await again()
    t.equal(first.status, 200)
    t.equal((await again()).text, first.text)
  }
  t.equal((await client.get(`${path}/_history`)).body.total, 4)
})

t.test('replays error responses', async (t) => {
  const key = withKey()
  const bad = { resourceType: 'Patient', foo: 1 }
  const first = await client.post('Patient', bad, key)
  t.equal(first.status, 400)
  t.equal((await client.post('Patient', bad, key)).text, first.text)
})

t.test('runs a request again that lost its races', async (t) => {
  const mark = randomUUID()
  const losing = `losing_${mark.replaceAll('-', '')}`
  const run = (text: string) => database.query({ text, values: [] })
  await run(`create function ${losing}() returns trigger language plpgsql as $$ begin
    if strpos(new.content, '${mark}') > 0 then
      raise exception 'another change was first' using errcode = '40001';
    end if;
    return new;
  end $$`)
  await run(`create trigger ${losing} before insert on version
    for each row execute function ${losing}()`)
  const request = { method: 'POST', url: 'Patient' }
  const entry = [{ request, resource: aMarked(mark) }]
  const client = { path: `/admin/projects/${botica.project.id}/client`, body: { name: mark } }
  const requests = [
    { path: 'Patient', body: aMarked(mark), status: 201 },
    { path: '', body: { resourceType: 'Bundle', type: 'transaction', entry }, status: 200 },
    { ...client, status: 201 },
  ].map((one) => ({ ...one, key: withKey() }))
  for (const { path, body, key } of requests) {
    const lost = await botica.admin.post(path, body, key)
    t.match(lost, { status: 409, body: { issue: [{ details: { text: /try again/ } }] } }, path)
    t.equal(lost.headers.get('retry-after'), '1')
  }
  await run(`drop function ${losing} cascade`)
  for (const { path, body, key, status } of requests) {
    const first = await botica.admin.post(path, body, key)
    t.equal(first.status, status, path)
    t.equal((await botica.admin.post(path, body, key)).text, first.text)
  }
  t.equal(await countMatches(mark), 2)
})

t.test('rejects another body under the same key', async (t) => {
  const key = withKey()
  t.equal((await client.post('Patient', aPatient(), key)).status, 201)
  const other = await client.post('Patient', aPatient({ gender: 'other' }), key)
  t.equal(other.status, 422)
  t.equal(other.body.id, 'business-rule')
})

t.test('rejects another condition under the same key', async (t) => {
  const mrn = randomUUID()
  const made = await client.create(aMarked(mrn))
  const path = `Patient/${made.id}`
  const exists = (value: string) => ({ 'If-None-Exist': `identifier=${MRN_SYSTEM}|${value}` })
  type Send = (headers: Record<string, string>) => ReturnType<typeof client.get>
  const cases: [Send, Record<string, string>, Record<string, string>, number][] = [
    [(headers) => client.post('Patient', made, headers), exists(mrn), exists(randomUUID()), 200],
    [(headers) => client.put(path, made, headers), { 'If-Match': 'W/"1"' }, {}, 200],
    [(headers) => client.put(path, made, headers), { 'If-None-Match': '*' }, {}, 412],
    [(headers) => client.del(path, headers), { 'If-Match': 'W/"9"' }, { 'If-Match': 'W/"1"' }, 412],
  ]
  for (const [send, condition, other, status] of cases) {
    const key = withKey()
    const first = await send({ ...condition, ...key })
    t.equal(first.status, status, first.text)
    t.equal((await send({ ...condition, ...key })).text, first.text)
    const changed = await send({ ...other, ...key })
    t.match(changed, { status: 422, body: { id: 'business-rule' } })
  }
  t.equal((await client.get(path)).headers.get('etag'), 'W/"1"')
})

t.test('scopes a key to one member, method and URL', async (t) => {
  const key = withKey()
  const body = aPatient()
  const { client: other } = await botica.createMember()
  const first = await client.post('Patient', body, key)
  const theirs = await other.post('Patient', body, key)
  t.equal(theirs.status, 201)
  t.not(theirs.body.id, first.body.id)
  t.not((await client.post('Patient?_x=1', body, key)).body.id, first.body.id)
})

t.test('runs one of several equal concurrent requests', async (t) => {
  const mrn = randomUUID()
  const key = withKey()
  const body = aMarked(mrn)
  const answers = await Promise.all(
    Array.from({ length: 8 }, () => client.post('Patient', body, key)),
  )
  const statuses = answers.map(({ status }) => status)
  t.ok(statuses.every((status) => status === 201 || status === 409))
  t.ok(statuses.includes(201))
  const busy = answers.find(({ status }) => status === 409)
  if (busy !== undefined) t.equal(busy.headers.get('retry-after'), '1')
  t.equal(new Set(answers.flatMap(({ status, body }) => (status === 201 ? body.id : []))).size, 1)
  t.equal(await countMatches(mrn), 1)
})

t.test('rejects the repeat of an administration request that never completed', async (t) => {
  const key = withKey()
  const path = `/admin/projects/${botica.project.id}/client`
  const body = { name: `Cut off ${randomUUID()}` }
  t.equal((await botica.admin.post(path, body, key)).status, 201)
  const [row] = await database.query<{ id: Buffer }>({
    text: 'select id from idempotent_request order by added desc limit 1',
    values: [],
  })
  const age = (time: string) => ({
    text: `update idempotent_request set status = null, added = clock_timestamp() - $1::interval
      where id = $2`,
    values: [time, row?.id],
  })
  await database.query(age('1 minute'))
  const busy = await botica.admin.post(path, body, key)
  t.equal(busy.status, 409)
  t.equal(busy.headers.get('retry-after'), '1')
  await database.query(age('10 minutes'))
  const cut = await botica.admin.post(path, body, key)
  t.equal(cut.status, 409)
  t.notOk(cut.headers.has('retry-after'))
  t.match(cut.text, /was interrupted/)
  const found = await botica.admin.get(
    `ClientApplication?name=${encodeURIComponent(body.name)}&_total=accurate`,
  )
  t.equal(found.body.total, 1)
})

t.test('deletes keys after a day', async (t) => {
  const key = withKey()
  const body = aPatient()
  const first = await client.post('Patient', body, key)
  await database.query({
    text: `update idempotent_request set added = clock_timestamp() - interval '25 hours'
      where added = (select max(added) from idempotent_request)`,
    values: [],
  })
  await removeOldRequests(database)
  const again = await client.post('Patient', body, key)
  t.equal(again.status, 201)
  t.not(again.body.id, first.body.id)
})

t.test('rejects a key on an upload, which may be sent in a transaction instead', async (t) => {
  const text = { 'Content-Type': 'text/plain' }
  const binary = { resourceType: 'Binary', contentType: 'text/plain', data: btoa('some text') }
  const { id } = await client.create(binary)
  const answers = [
    await client.post('Binary', 'some text', { ...text, ...withKey() }),
    await client.post('Binary', binary, withKey()),
    await client.put(`Binary/${id}`, 'other text', { ...text, ...withKey() }),
  ]
  for (const answer of answers) {
    const details = { text: /Idempotency-Key does not apply to an upload/ }
    t.match(answer, { status: 400, body: { issue: [{ code: 'not-supported', details }] } })
  }
  t.equal((await client.get(`Binary/${id}/_history`)).body.total, 1)

  const entry = [{ request: { method: 'POST', url: 'Binary' }, resource: binary }]
  const bundle = { resourceType: 'Bundle', type: 'transaction', entry }
  const key = withKey()
  const first = await client.post('', bundle, key)
  t.match(first, { status: 200, body: { entry: [{ response: { status: '201' } }] } })
  t.equal((await client.post('', bundle, key)).text, first.text)
})

t.test('rejects malformed keys and ignores keys on reads', async (t) => {
  t.equal((await client.post('Patient', aPatient(), withKey('x'.repeat(129)))).status, 400)
  t.equal((await client.post('Patient', aPatient(), withKey('x'.repeat(128)))).status, 201)
  t.equal((await client.get('Patient', withKey('x'.repeat(129)))).status, 200)
})

t.test('replays the response to a repeated administration request', async (t) => {
  const key = withKey()
  const path = `/admin/projects/${botica.project.id}/client`
  const body = { name: `Once ${randomUUID()}` }
  const first = await botica.admin.post(path, body, key)
  const again = await botica.admin.post(path, body, key)
  t.equal(first.status, 201)
  t.equal(again.status, 201)
  t.equal(again.text, first.text)
  t.equal(again.headers.get('location'), first.headers.get('location'))
  t.equal(again.headers.get('content-type'), first.headers.get('content-type'))
  const found = await botica.admin.get(
    `ClientApplication?name=${encodeURIComponent(body.name)}&_total=accurate`,
  )
  t.equal(found.body.total, 1)
  t.equal((await botica.admin.post(path, { name: 'Other' }, key)).status, 422)

  const refusedKey = withKey()
  const refused = await botica.admin.post(path, [], refusedKey)
  t.equal(refused.status, 400)
  t.equal((await botica.admin.post(path, [], refusedKey)).text, refused.text)
})

t.test('stores no client secret with the response', async (t) => {
  const path = `/admin/projects/${botica.project.id}/client`
  const key = withKey()
  const first = await botica.admin.post<{ secret: string }>(path, { name: 'Sealed' }, key)
  const again = await botica.admin.post<{ secret: string }>(path, { name: 'Sealed' }, key)
  t.equal(first.status, 201)
  t.equal(again.text, first.text)
  const [row] = await database.query<{ held: boolean }>({
    text: 'select bool_or(position($1::bytea in reply) > 0) as held from idempotent_request',
    values: [Buffer.from(first.body.secret)],
  })
  t.equal(row?.held, false)
})
