/** `Binary/{id}/$presigned-url`: addresses for a download, and for one upload. */
import t from 'tap'
import { upload } from '../../fixtures/binaries.ts'
import { openBotica } from '../../fixtures/botica.ts'
import type { Untyped } from '../../fixtures/bots/bots.ts'
import { changeMembership, memberUnder } from '../../fixtures/policy/policy.ts'

const botica = await openBotica(t)
const { admin } = botica

interface Address {
  readonly parameter: readonly [{ readonly name: string; readonly valueUri: string }]
}

const presign = async (id: string, isUpload: boolean, client = admin) => {
  const end = isUpload ? '?upload=true' : ''
  const made = await client.get<Address>(`Binary/${id}/$presigned-url${end}`)
  t.equal(made.status, 200, made.text)
  t.equal(made.body.parameter[0].name, 'url')
  return made.body.parameter[0].valueUri
}
const send = (url: string, body: string, type = 'text/plain') =>
  fetch(url, { method: 'PUT', body, headers: { 'Content-Type': type } })
const readBinary = async (id: string) => (await fetch(await presign(id, false))).text()

t.test('makes an address for a download', async (t) => {
  const { id = '' } = await upload(admin, Buffer.from('first'), 'text/plain')
  const url = await presign(id, false)
  const answer = await fetch(url)
  t.equal(answer.status, 200)
  t.equal(await answer.text(), 'first')
  t.equal((await send(url, 'second')).status, 401, 'it takes no content')

  t.equal((await admin.get(`Binary/${id}/$presigned-url?uploads=true`)).status, 400)
  const stranger = (await botica.createTenant()).admin
  t.equal((await stranger.get(`Binary/${id}/$presigned-url`)).status, 404)
  t.equal((await botica.anonymous.get(`Binary/${id}/$presigned-url`)).status, 401)
})

t.test('makes an address that takes new content once', async (t) => {
  const { id = '' } = await upload(admin, Buffer.from('first'), 'text/plain')
  const url = await presign(id, true)
  t.equal((await fetch(url)).status, 401, 'it shows no content')
  for (const [name, value] of [
    ['Upload', 'other'],
    ['Member', 'other'],
    ['Expires', '9999999999'],
  ] as const) {
    const changed = new URL(url)
    changed.searchParams.set(name, value)
    t.equal((await send(changed.href, 'forged')).status, 401, name)
  }
  const stored = await send(url, 'second', 'text/csv')
  t.equal(stored.status, 200, await stored.text())
  t.equal(await readBinary(id), 'second')
  t.equal((await send(url, 'third')).status, 412, 'it works once')
  t.equal(await readBinary(id), 'second')
})

t.test('an upload uses the current rights of the caller', async (t) => {
  const { id = '' } = await upload(admin, Buffer.from('first'), 'text/plain')
  const reader = await memberUnder(botica, {
    entries: [{ resourceType: 'Binary', readonly: true }],
  })
  t.equal((await reader.client.get(`Binary/${id}/$presigned-url?upload=true`)).status, 403)
  t.equal((await reader.client.get(`Binary/${id}/$presigned-url`)).status, 200)

  const writer = await memberUnder(botica, { entries: [{ resourceType: 'Binary' }] })
  const url = await presign(id, true, writer.client)
  const made = await admin.create({
    resourceType: 'AccessPolicy',
    resource: [{ resourceType: 'Binary', readonly: true }],
  } as Untyped)
  const access = [{ policy: { reference: `AccessPolicy/${made.id}` } }]
  await changeMembership(botica, `ClientApplication/${writer.id}`, { access })
  t.equal((await send(url, 'late')).status, 403, 'the right was withdrawn')
  t.equal(await readBinary(id), 'first')
})

t.test('an upload changes the content, and not the readers', async (t) => {
  const [first, second] = await Promise.all([
    admin.create({ resourceType: 'Patient' }),
    admin.create({ resourceType: 'Patient' }),
  ])
  const guarded = { securityContext: { reference: `Patient/${first.id}` } }
  const { id } = await admin.create({
    resourceType: 'Binary',
    contentType: 'text/plain',
    data: 'YQ==',
    ...guarded,
  } as Untyped)
  const other = { reference: `Patient/${second.id}` }
  const headers = { 'Content-Type': 'text/plain', 'X-Security-Context': other.reference }
  const refused = await fetch(await presign(id, true), { method: 'PUT', body: 'b', headers })
  t.equal(refused.status, 400)
  t.match(await refused.text(), /X-Security-Context does not apply/)

  const sent = { resourceType: 'Binary', id, contentType: 'text/html', data: 'YWI=' }
  const text = JSON.stringify({ ...sent, securityContext: other })
  const stored = await send(await presign(id, true), text, 'application/fhir+json')
  t.equal(stored.status, 200)
  t.match(await stored.json(), { ...guarded, contentType: 'application/fhir+json' })
  t.equal(await readBinary(id), text, 'a Binary in JSON is content')
})
