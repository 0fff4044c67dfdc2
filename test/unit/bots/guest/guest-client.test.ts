import t from 'tap'
import { openGuest, plain } from '../../../fixtures/bots/guest.ts'
import { calls, patient } from './guest-calls.ts'

interface Sent {
  readonly kind: string
  readonly method: string
  readonly path: string
  readonly headers: Record<string, string>
  readonly body?: string
  readonly encoding?: string
  readonly url?: string
}

type Answer = Record<string, unknown>

const json = { 'content-type': 'application/fhir+json; charset=utf-8' }

function reply(body: unknown, status = 200): Answer {
  return { status, headers: json, body: JSON.stringify(body) }
}

function openClient(answer: (request: Sent) => unknown = () => reply(patient), context = {}) {
  const sent: Sent[] = []
  const guest = openGuest({
    context,
    call: async (kind, request) => {
      const seen = { kind, ...request } as unknown as Sent
      sent.push(seen)
      return answer(seen)
    },
  })
  const medplum = guest.load('./client.cjs').createClient(guest.host, guest.host.context)
  return { sent, medplum, guest }
}

for (const [name, call, method, path, body, contentType] of calls) {
  t.test(`${name} sends ${method} ${path}`, async (t) => {
    const { medplum, sent } = openClient()
    await call(medplum)
    const [request] = sent
    t.equal(sent.length, 1)
    t.match(request, { kind: 'fhir', method, path })
    t.equal(request?.headers['X-Medplum'], 'extended')
    t.match(request?.headers.Accept, /^application\/fhir\+json/)
    const text = request?.body
    t.same(typeof body === 'string' ? text : text && JSON.parse(text), body)
    if (contentType !== undefined) t.equal(request?.headers['Content-Type'], contentType)
    if (body === undefined) t.equal(request?.headers['Content-Type'], undefined)
  })
}

t.test('sends the query of a conditional create in a header', async (t) => {
  const { medplum, sent } = openClient()
  t.same(plain(await medplum.createResourceIfNoneExist(patient, '?identifier=a|b')), patient)
  t.equal(sent[0]?.headers['If-None-Exist'], 'identifier=a|b')
})

t.test('returns the input of an update without changes', async (t) => {
  const { medplum } = openClient(() => ({ status: 304, headers: {} }))
  t.equal(await medplum.updateResource(patient), patient)
})

t.test('rejects resources without type or id, and empty ids, before sending', async (t) => {
  const { medplum, sent } = openClient()
  await t.rejects(medplum.createResource({}), { message: 'Missing resourceType' })
  await t.rejects(medplum.updateResource({ resourceType: 'Patient' }), { message: 'Missing id' })
  await t.rejects(medplum.readResource('Patient', ''), /cannot be null/)
  await t.rejects(medplum.readReference({}), { message: 'Missing reference' })
  await t.rejects(medplum.readReference({ reference: 'Patient?x=y' }), /Invalid reference/)
  t.equal(sent.length, 0)
})

t.test('throws a failure with its outcome', async (t) => {
  const issue = [{ severity: 'error', code: 'not-found', details: { text: 'Not found' } }]
  const outcome = { resourceType: 'OperationOutcome', id: 'not-found', issue }
  const { medplum } = openClient(() => reply(outcome, 404))
  const error = await medplum.readResource('Patient', '9').catch((thrown: unknown) => thrown)
  t.equal(error.name, 'OperationOutcomeError')
  t.equal(error.message, 'Not found')
  t.same(plain(error.outcome), outcome)
})

t.test('converts text failures and worker errors to outcomes', async (t) => {
  const inWords = openClient(() => ({ status: 502, headers: {}, body: 'Bad gateway' }))
  await t.rejects(inWords.medplum.get('x'), { message: 'Bad gateway' })
  const refused = openClient(() => ({ error: 'Too many calls' }))
  await t.rejects(refused.medplum.get('x'), { message: 'Too many calls' })
})

t.test('rejects URLs of other services', async (t) => {
  const { medplum, sent } = openClient()
  for (const url of ['https://other.test/x', '//other.test/x', 'HTTP://other', 'file:///x']) {
    await t.rejects(medplum.get(url), /use fetch/)
  }
  t.equal(sent.length, 0)
})

t.test('returns search results as an array with its bundle', async (t) => {
  const found = { resourceType: 'Bundle', entry: [{ resource: patient }] }
  const { medplum } = openClient(() => reply(found))
  const list = await medplum.searchResources('Patient', 'name=x')
  t.same(plain(list), [patient])
  t.same(plain(list.bundle), found)
  t.same(plain(await medplum.searchOne('Patient')), patient)
})

t.test('returns an empty array or undefined without matches', async (t) => {
  const { medplum } = openClient(() => reply({ resourceType: 'Bundle' }))
  t.same(plain(await medplum.searchResources('Patient')), [])
  t.equal(await medplum.searchOne('Patient'), undefined)
})

t.test('follows next links to further pages', async (t) => {
  const next = 'https://botica.test/fhir/R4/Patient?_cursor=2'
  const pages: Record<string, unknown> = {
    'Patient?name=x&_count=1000': {
      entry: [{ resource: patient }],
      link: [{ relation: 'next', url: next }],
    },
    'Patient?_cursor=2': { entry: [{ resource: { ...patient, id: '2' } }] },
  }
  const { medplum } = openClient(({ path }) => reply(pages[path]))
  const ids: string[] = []
  for await (const page of medplum.searchResourcePages('Patient', 'name=x')) {
    for (const resource of page) ids.push(resource.id)
  }
  t.same(ids, ['1', '2'])
})

t.test('limits concurrent calls to twenty, and answers all', async (t) => {
  let open = 0
  let most = 0
  const { medplum } = openClient(async () => {
    most = Math.max(most, ++open)
    await new Promise((resolve) => setImmediate(resolve))
    open--
    return reply(patient)
  })
  const reads = Array.from({ length: 75 }, () => medplum.readResource('Patient', '1'))
  t.equal((await Promise.all(reads)).length, 75)
  t.equal(most, 20)
})

t.test('does not slow the next run by open calls of an ended run', async (t) => {
  let isStuck = true
  const { medplum, guest } = openClient(() => (isStuck ? new Promise(() => {}) : reply(patient)))
  for (let count = 0; count < 30; count++) void medplum.readResource('Patient', '1')
  isStuck = false
  const next = guest.load('./client.cjs').createClient(guest.host, guest.host.context)
  t.same(plain(await next.readResource('Patient', '1')), patient)
})

t.test('transfers bytes as base64 in both directions', async (t) => {
  const bytes = Buffer.from([0, 255, 10])
  const body = bytes.toString('base64')
  const headers = { 'content-type': 'image/png' }
  const { medplum, sent } = openClient(() => ({ status: 200, headers, body, encoding: 'base64' }))
  await medplum.createBinary({ data: new Uint8Array(bytes), contentType: 'image/png' })
  t.match(sent[0], { body, encoding: 'base64', path: 'Binary' })
  const blob = await medplum.download('Binary/1')
  t.match(sent[1], { method: 'GET', path: 'Binary/1', headers: { Accept: '*/*' } })
  t.equal(blob.type, 'image/png')
  t.equal(blob.size, 3)
  t.same([...new Uint8Array(await blob.arrayBuffer())], [...bytes])
})

t.test('downloads from another storage host through fetch', async (t) => {
  const body = Buffer.from('text').toString('base64')
  const { medplum, sent } = openClient(() => ({ status: 200, headers: {}, body }))
  t.equal(await (await medplum.download('https://storage.test/a?sig=b')).text(), 'text')
  t.match(sent[0], { kind: 'fetch', url: 'https://storage.test/a?sig=b' })
})

t.test('references the binary in an attachment, secured by its resource', async (t) => {
  const { medplum, sent } = openClient(({ path }) =>
    reply(path.startsWith('Binary') ? { url: 'Binary/7' } : { resourceType: 'Media', id: '3' }),
  )
  const file = { data: 'x', filename: 'f.txt', contentType: 'text/plain' }
  const attachment = await medplum.createAttachment(file)
  t.same(plain(attachment), { contentType: 'text/plain', url: 'Binary/7', title: 'f.txt' })
  sent.length = 0
  await medplum.createMedia({ ...file, additionalFields: { status: 'completed' } })
  t.same(
    sent.map(({ method, path }) => `${method} ${path}`),
    ['POST Media', 'POST Binary?_filename=f.txt', 'PUT Media/3'],
  )
  t.equal(sent[1]?.headers['X-Security-Context'], 'Media/3')
})

t.test('knows the identity of the run without a request', async (t) => {
  const profile = { resourceType: 'Bot', id: 'b' }
  const member = { profile, membership: { admin: true }, project: { id: 'p', superAdmin: true } }
  const context = { details: JSON.stringify(member) }
  const { medplum, sent, guest } = openClient(undefined, context)
  t.same(medplum.getProfile(), profile)
  t.equal(await medplum.getProfileAsync(), medplum.getProfile())
  t.equal(medplum.getProject().id, 'p')
  t.equal(medplum.isProjectAdmin(), true)
  t.equal(medplum.isSuperAdmin(), true)
  t.equal(medplum.getBaseUrl(), 'https://botica.test/')
  t.equal(
    String(medplum.fhirSearchUrl('Patient', { name: 'x' })),
    'https://botica.test/fhir/R4/Patient?name=x',
  )
  const { MedplumClient } = guest.load('./core.cjs')
  const another = new MedplumClient({ baseUrl: 'https://evil.test/', accessToken: 'x' })
  t.equal(another.getBaseUrl(), 'https://botica.test/')
  t.equal(another.getProfile(), medplum.getProfile())
  t.equal(sent.length, 0)
})

t.test('creates a token only on request of the bot', async (t) => {
  const { medplum, sent } = openClient(() => ({ accessToken: 'abc' }))
  t.equal(medplum.getAccessToken(), undefined)
  await medplum.refreshIfExpired()
  t.equal(medplum.getAccessToken(), 'abc')
  t.equal(sent[0]?.kind, 'token')
})

t.test('rejects sign-in, subscriptions and PDFs', async (t) => {
  const { medplum } = openClient()
  for (const name of [
    'startLogin',
    'signOut',
    'startClientLogin',
    'fhircastConnect',
    'subscribeToCriteria',
  ]) {
    t.throws(() => medplum[name](), { message: 'Not supported in a bot' }, name)
  }
  await t.rejects(medplum.createPdf({}), { message: 'PDF creation not enabled' })
  t.equal(medplum.invalidateAll(), undefined)
  await medplum.requestSchema('Patient')
})
