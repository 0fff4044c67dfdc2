/** Stored responses and files are hidden from a member whose access was narrowed later. */
import t from 'tap'
import { type Binary, download, upload } from '../../fixtures/binaries.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import type { Client } from '../../fixtures/client.ts'
import { fetchManifest, kickOff } from '../../fixtures/exports/exports.ts'
import { aPatient } from '../../fixtures/resources.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const PATIENCE_MS = 60_000
const PHONE = '555-0199'
const TELECOM = [{ system: 'phone', value: PHONE }]
const EVERYTHING = [{ resourceType: '*' }]
const NO_PHONE = [{ resourceType: 'Patient', hiddenFields: ['telecom'] }, { resourceType: '*' }]

const botica = await openBotica(t, {
  worker: true,
  env: { DATABASE_URL: await createDatabase(t), WORKER_QUEUES: 'bots-sync,requests,export' },
})
const { admin } = botica
const patient = await admin.create(aPatient({ telecom: TELECOM }))

async function aMember() {
  const policy = await admin.create({ resourceType: 'AccessPolicy', resource: EVERYTHING })
  const reference = { reference: `AccessPolicy/${policy.id}` }
  const { id, client } = await botica.createMember({ accessPolicy: reference })
  const restrict = async (resource: readonly object[]) => {
    await admin.put(`AccessPolicy/${policy.id}`, { ...policy, resource })
    const isHidden = resource !== EVERYTHING
    await until(async () => {
      const { text } = await client.get(`Patient/${patient.id}`)
      return text.includes(PHONE) !== isHidden
    }, PATIENCE_MS)
  }
  return { id, client, restrict }
}

async function remove(clientId: string): Promise<void> {
  const found = await admin.get<{ entry: { resource: { id: string } }[] }>(
    `ProjectMembership?profile=ClientApplication/${clientId}`,
  )
  const [entry] = found.body.entry
  t.equal((await admin.del(`ProjectMembership/${entry?.resource.id}`)).status, 200)
}

t.test('hides the files of an export made before the policy was narrowed', async (t) => {
  const { client, restrict } = await aMember()
  const status = await kickOff(client, 'Patient/$export')
  const { output } = await fetchManifest(client, status)
  const file = output.find(({ type }) => type === 'Patient')?.url ?? ''
  const before = await client.get(file)
  t.match(before.text, PHONE)
  t.equal(before.headers.get('x-content-type-options'), 'nosniff')
  t.match(before.headers.get('content-disposition'), /^attachment;/)

  await restrict(NO_PHONE)
  for (const url of [file, status]) {
    const refused = await client.get(url)
    t.equal(refused.status, 403)
    t.match(refused.body, {
      resourceType: 'OperationOutcome',
      issue: [{ code: 'forbidden', details: { text: /changed.*export again/i } }],
    })
    t.notMatch(refused.text, PHONE)
  }
  const ranged = await client.get(file, { Range: 'bytes=0-99' })
  t.equal(ranged.status, 403, 'hides a part of it')
  t.match((await admin.get(file)).text, PHONE, 'serves it to administrators')
  t.equal((await client.del(status)).status, 202, 'lets its owner delete it')
})

t.test('shows the files again when the policy is restored', async (t) => {
  const { client, restrict } = await aMember()
  const status = await kickOff(client, 'Patient/$export')
  const { output } = await fetchManifest(client, status)
  const file = output.find(({ type }) => type === 'Patient')?.url ?? ''
  await restrict(NO_PHONE)
  t.equal((await client.get(file)).status, 403)
  await restrict(EVERYTHING)
  t.match((await client.get(file)).text, PHONE)
})

t.test('replays no response created under other rules', async (t) => {
  const { client, restrict } = await aMember()
  const sent = aPatient({ telecom: TELECOM })
  const changed = { ...sent, id: patient.id, active: true }
  const writes: readonly (() => ReturnType<Client['post']>)[] = [
    () => client.post('Patient', sent, { 'Idempotency-Key': 'create' }),
    () => client.put(`Patient/${patient.id}`, changed, { 'Idempotency-Key': 'update' }),
    () => client.post('', batch, { 'Idempotency-Key': 'batch' }),
  ]
  const batch = {
    resourceType: 'Bundle',
    type: 'batch',
    entry: [{ request: { method: 'GET', url: `Patient/${patient.id}` } }],
  }
  for (const write of writes) {
    const first = await write()
    t.match(first.text, PHONE)
    t.match((await write()).text, PHONE, 'replays the response')
  }
  const before = await admin.get<{ total: number }>('Patient?_total=accurate&_count=0')

  await restrict(NO_PHONE)
  for (const write of writes) {
    const again = await write()
    t.equal(again.status, 409)
    t.match(again.body, {
      resourceType: 'OperationOutcome',
      issue: [
        {
          code: 'conflict',
          details: { text: /Idempotency-Key.*access of its caller has changed/ },
        },
      ],
    })
    t.notMatch(again.text, PHONE)
  }
  const after = await admin.get<{ total: number }>('Patient?_total=accurate&_count=0')
  t.equal(after.body.total, before.body.total, 'writes nothing again')
  await restrict(EVERYTHING)
  for (const write of writes) t.match((await write()).text, PHONE)
})

t.test('replays a response without a body after any change', async (t) => {
  const { client, restrict } = await aMember()
  const headers = { 'Idempotency-Key': 'minimal', Prefer: 'return=minimal' }
  const sent = aPatient({ telecom: TELECOM })
  const write = () => client.post('Patient', sent, headers)
  const first = await write()
  await restrict(NO_PHONE)
  const again = await write()
  t.equal(again.status, 201)
  t.equal(again.headers.get('location'), first.headers.get('location'))
})

t.test('invalidates a signed URL with the membership of its caller', async (t) => {
  const { id, client } = await aMember()
  const { url } = await upload(client, 'a letter', 'text/plain')
  const media = await client.create({
    resourceType: 'Media',
    status: 'completed',
    content: { url: `Binary/${/storage\/([^/]+)/.exec(url)?.[1]}` },
  })
  const { content } = media as unknown as { content: { url: string } }
  for (const address of [url, content.url]) {
    t.equal((await download(botica, address)).bytes.toString(), 'a letter')
  }
  await remove(id)
  for (const address of [url, content.url]) {
    const gone = await download(botica, address)
    t.equal(gone.status, 410)
    t.match(gone.bytes.toString(), 'OperationOutcome')
  }
})

t.test('invalidates a signed URL with the right to read the Binary', async (t) => {
  const { client, restrict } = await aMember()
  const { url } = await upload(client, 'a letter', 'text/plain')
  await restrict([{ resourceType: 'Patient', hiddenFields: ['telecom'] }])
  t.equal((await download(botica, url)).status, 410)
})

t.test('invalidates a signed URL with its Binary', async (t) => {
  const { client } = await aMember()
  const { id, url } = await upload(client, 'a letter', 'text/plain')
  t.equal((await download(botica, url)).status, 200)
  await client.del(`Binary/${id}`)
  t.equal((await download(botica, url)).status, 410)
})

t.test('rejects a signed URL with a changed member', async (t) => {
  const [mine, theirs] = [await aMember(), await aMember()]
  const { url } = await upload(mine.client, 'a letter', 'text/plain')
  const other = (await upload(theirs.client, 'another', 'text/plain')).url
  const member = new URL(other).searchParams.get('Member') ?? ''
  const forged = (change: (query: URLSearchParams) => void) => {
    const address = new URL(url)
    change(address.searchParams)
    return download(botica, address.href)
  }
  const expires = new URL(url).searchParams.get('Expires')
  const own = new URL(url).searchParams.get('Member')
  t.ok(member)
  t.equal((await forged((query) => query.set('Member', member))).status, 401)
  t.equal((await forged((query) => query.delete('Member'))).status, 401)
  t.equal((await forged((query) => query.set('Member', ''))).status, 401)
  const folded = await forged((query) => {
    query.set('Expires', `${expires}\n${own}`)
    query.delete('Member')
  })
  t.equal(folded.status, 401)
})

t.test('shows the stored response of an accepted request only to its caller', async (t) => {
  const [caller, neighbour] = [await aMember(), await aMember()]
  await neighbour.restrict(NO_PHONE)
  const asked = await caller.client.get(`Patient?_id=${patient.id}`, { Prefer: 'respond-async' })
  t.equal(asked.status, 202)
  const status = String(asked.headers.get('content-location'))
  await until(async () => (await caller.client.get(status)).status === 200, PATIENCE_MS)
  const { body } = await caller.client.get<{
    output: { parameter: { valueReference?: { reference: string } }[] }
  }>(status)
  const [binary = ''] = body.output.parameter.flatMap(
    ({ valueReference }) => valueReference?.reference ?? [],
  )
  for (const client of [caller.client, admin]) {
    t.match((await download(botica, binary, client)).bytes.toString(), PHONE)
    const shown = await client.get<Binary>(binary, { Accept: 'application/fhir+json' })
    t.match((await download(botica, shown.body.url)).bytes.toString(), PHONE)
  }
  t.equal((await download(botica, binary, neighbour.client)).status, 404)
  const history = await neighbour.client.get(`${binary}/_history`)
  t.equal(history.status, 404)
})
