import { createHmac } from 'node:crypto'
import t from 'tap'
import { type Binary, download, upload } from '../../fixtures/binaries.ts'
import { openBotica, statementsAsked } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { aPatient } from '../../fixtures/resources.ts'

const botica = await openBotica(t)
const { admin, baseUrl } = botica
const { services } = botica
const { database } = services

interface Media extends Resource {
  readonly id: string
  readonly content: { readonly url: string }
}

interface Found {
  readonly entry: readonly { readonly resource: Media }[]
}

function aMedia(url: string): Resource {
  return { resourceType: 'Media', status: 'completed', content: { contentType: 'text/plain', url } }
}

const create = async (url: string) => (await admin.create(aMedia(url))) as Media

/** Returns the stored form. */
async function stored(type: string, id: string): Promise<string> {
  const session = await botica.services.principals.forProfile(
    `ClientApplication/${botica.adminCredentials.id}`,
  )
  if (session === undefined) throw new Error('The client has no session')
  const { content = '' } = await botica.services.repository.read(session.principal, type, id)
  return content
}

t.test('stores Binary URLs as Binary/id and returns them signed', async (t) => {
  const { id, url } = await upload(admin, 'hello', 'text/plain')
  const addresses = [
    `Binary/${id}`,
    `Binary/${id}/_history/1`,
    `${baseUrl}fhir/R4/Binary/${id}`,
    `${baseUrl}storage/${id}/1`,
    url,
  ]
  for (const address of addresses) {
    const media = await create(address)
    t.match(await stored('Media', media.id), `"url":"Binary/${id}"`, address)
    const read = await admin.get<Media>(`Media/${media.id}`)
    for (const shown of [media, read.body]) {
      t.ok(shown.content.url.startsWith(`${baseUrl}storage/${id}/1?Expires=`))
      t.equal((await download(botica, shown.content.url)).bytes.toString(), 'hello')
    }
    const again = await admin.put<Media>(`Media/${media.id}`, read.body)
    t.equal(again.body.meta?.versionId, '1', 'accepts the attachment as it was read')
  }
})

t.test('keeps other URLs, references and names', async (t) => {
  const { id } = await upload(admin, 'hello', 'text/plain')
  for (const url of ['https://example.org/Binary/1', 'Binary', `x/Binary/${id}`, 'urn:Binary/1']) {
    t.equal((await create(url)).content.url, url)
  }
  const list = await admin.create({
    resourceType: 'List',
    status: 'current',
    mode: 'working',
    title: `"url":"Binary/${id}"`,
    entry: [{ item: { reference: `Binary/${id}` } }],
  })
  t.match(await admin.get(`List/${list.id}`), {
    body: { title: `"url":"Binary/${id}"`, entry: [{ item: { reference: `Binary/${id}` } }] },
  })
  const bundle = await admin.create({
    resourceType: 'Bundle',
    type: 'batch',
    entry: [{ request: { url: `Binary/${id}`, method: 'GET' } }],
  })
  t.match(bundle, { entry: [{ request: { url: `Binary/${id}` } }] })
})

t.test('signs no URL of a deleted, unknown or foreign Binary', async (t) => {
  const gone = await upload(admin, 'x', 'text/plain')
  await admin.del(`Binary/${gone.id}`)
  const other = await botica.createTenant()
  const foreign = await upload(other.admin, 'x', 'text/plain')
  for (const id of [gone.id, foreign.id, crypto.randomUUID(), 'no.such-id']) {
    const media = await create(`Binary/${id}`)
    t.equal(media.content.url, `Binary/${id}`)
  }
  t.equal((await download(botica, `Binary/${foreign.id}`, admin)).status, 404)
  t.equal((await admin.get(`Binary/${foreign.id}`)).status, 404)
  const put = await admin.put(`Binary/${foreign.id}`, 'y', { 'Content-Type': 'text/plain' })
  t.equal(put.status, 404)
  t.equal((await download(botica, `Binary/${foreign.id}`)).status, 401)
})

t.test('reads all Binaries of a page with one statement and signs each once', async (t) => {
  const binaries = await Promise.all(
    Array.from({ length: 12 }, () => upload(admin, 'x', 'text/plain')),
  )
  const device = await admin.create({ resourceType: 'Device' })
  for (const { id } of [...binaries, ...binaries]) {
    await admin.create({ ...aMedia(`Binary/${id}`), device: { reference: `Device/${device.id}` } })
  }
  let page = await admin.get<Found>('Media?_id=none')
  const cost = await statementsAsked(services, admin, async () => {
    page = await admin.get<Found>(`Media?device=Device/${device.id}&_count=100`)
  })
  t.equal(cost, 2)
  const urls = page.body.entry.map(({ resource }) => resource.content.url)
  t.equal(urls.length, 24)
  t.equal(new Set(urls).size, 12)
  t.ok(urls.every((url) => url.startsWith(`${baseUrl}storage/`)))

  const entry = page.body.entry.map(({ resource }) => ({
    request: { method: 'GET', url: `Media/${resource.id}` },
  }))
  const single = database.statements
  const batch = await admin.post<Found>('', { resourceType: 'Bundle', type: 'batch', entry })
  t.ok(database.statements - single <= 25, 'a bundle signs all of its entries at once')
  t.ok(batch.body.entry.every(({ resource }) => resource.content.url.startsWith(baseUrl)))
})

t.test('a read without attachments takes one statement', async (t) => {
  const { id } = await admin.create(aPatient())
  const media = await create('https://example.org/picture.png')
  for (const path of [`Patient/${id}`, `Media/${media.id}`]) {
    const cost = await statementsAsked(services, admin, async () => {
      t.equal((await admin.get(path)).status, 200)
    })
    t.equal(cost, 1)
  }
})

t.test('signs and expunges a Binary with half a surrogate pair', async (t) => {
  const { id } = await admin.create({
    resourceType: 'Binary',
    meta: { tag: [{ code: 'x\ud800' }] },
    contentType: 'text/plain',
    data: 'eA==',
  })
  const media = await create(`Binary/${id}`)
  t.match(await admin.get(`Media/${media.id}`), { body: { content: { url: /\/storage\// } } })
  t.equal((await admin.post(`Binary/${id}/$expunge`)).status, 200)
})

t.test('shows a Binary only to readers of its securityContext', async (t) => {
  const policy = await admin.create({
    resourceType: 'AccessPolicy',
    resource: ['Binary', 'Media'].map((resourceType) => ({ resourceType })),
  })
  const member = await botica.createMember({
    accessPolicy: { reference: `AccessPolicy/${policy.id}` },
  })
  const { client } = member
  const patient = await admin.create(aPatient())
  const open = await upload(admin, 'open', 'text/plain')
  const guarded = await admin.post<Binary>('Binary', 'guarded', {
    'Content-Type': 'text/plain',
    'X-Security-Context': `Patient/${patient.id}`,
  })
  t.match(guarded.body, { securityContext: { reference: `Patient/${patient.id}` } })
  const { id } = guarded.body
  const data = { resourceType: 'Binary', id, contentType: 'text/plain', data: 'AAAA' }

  t.equal((await download(botica, `Binary/${open.id}`, client)).status, 200)
  for (const path of [`Binary/${id}`, `Binary/${id}/_history/1`, `Binary/${id}/_history`]) {
    t.equal((await client.get(path)).status, 404, path)
    t.equal((await admin.get(path)).status, 200, path)
  }
  t.equal((await client.put(`Binary/${id}`, data)).status, 404)
  t.equal((await client.put(`Binary/${id}`, 'x', { 'Content-Type': 'text/plain' })).status, 404)
  t.equal((await client.patch(`Binary/${id}`, [])).status, 404)
  t.equal((await client.del(`Binary/${id}`)).status, 404)
  const [mine, theirs] = await Promise.all([create(`Binary/${open.id}`), create(`Binary/${id}`)])
  t.match(await client.get(`Media/${mine.id}`), { body: { content: { url: /\/storage\// } } })
  t.match(await client.get(`Media/${theirs.id}`), { body: { content: { url: `Binary/${id}` } } })
  t.match(await admin.get(`Media/${theirs.id}`), { body: { content: { url: /\/storage\// } } })

  const bare = await admin.put<Binary>(`Binary/${id}`, 'new', { 'Content-Type': 'text/plain' })
  t.match(bare.body, { securityContext: { reference: `Patient/${patient.id}` } })
})

t.test('accepts a signed URL without a token and rejects altered ones', async (t) => {
  const { url } = await upload(admin, 'one', 'text/plain')
  const second = await upload(admin, 'two', 'text/plain')
  t.equal((await download(botica, url)).status, 200)
  const change = (name: string, value: string | undefined) => {
    const changed = new URL(url)
    if (value === undefined) changed.searchParams.delete(name)
    else changed.searchParams.set(name, value)
    return changed.href
  }
  const other = await botica.createTenant()
  const wrong = [
    change('Signature', undefined),
    change('Signature', ''),
    change('Signature', 'AAAA'),
    change('Signature', String(new URL(second.url).searchParams.get('Signature'))),
    change('Expires', '9999999999'),
    change('Expires', undefined),
    change('Project', other.project.id),
    change('Project', undefined),
    url.replace(/\/storage\/[^/]+/, `/storage/${second.id}`),
    url.replace('/1?', '/2?'),
    url.replace('/1?', '/x?'),
    `${baseUrl}storage/x/1`,
  ]
  for (const address of wrong) {
    const answer = await download(botica, address)
    t.equal(answer.status, 401, address)
    t.match(answer.bytes.toString(), /OperationOutcome/)
  }
})

t.test('returns 410 for an expired address and 404 for one of a lost project', async (t) => {
  const { id } = await upload(admin, 'one', 'text/plain')
  const [key] = botica.services.tokens.keys.keys
  const signed = (project: string, expires: number) => {
    const text = [project, id, 1, expires, ''].join('\n')
    const signature = createHmac('sha256', key?.urlSecret ?? '')
      .update(text)
      .digest('base64url')
    const query = new URLSearchParams({
      Expires: String(expires),
      Project: project,
      Signature: signature,
    })
    return `${baseUrl}storage/${id}/1?${query}`
  }
  const now = Math.floor(Date.now() / 1000)
  t.equal((await download(botica, signed(botica.project.id, now + 60))).status, 200)
  const expired = await download(botica, signed(botica.project.id, now - 1))
  t.equal(expired.status, 410)
  t.match(expired.bytes.toString(), /expired/)
  t.equal((await download(botica, signed(crypto.randomUUID(), now + 60))).status, 404)
})
