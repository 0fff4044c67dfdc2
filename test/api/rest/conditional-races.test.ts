import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { aPatient, MRN_SYSTEM } from '../../fixtures/resources.ts'

const botica = await openBotica(t)
const { client } = await botica.createMember()
const task = { resourceType: 'Task', status: 'requested', intent: 'order' }

/** Runs `send` 10 times at once; returns how often each status was returned. */
async function race(send: (i: number) => Promise<{ readonly status: number }>) {
  const all = await Promise.all(Array.from({ length: 10 }, (_, i) => send(i)))
  const counts: Record<number, number> = {}
  for (const { status } of all) counts[status] = (counts[status] ?? 0) + 1
  return counts
}

const claim = [{ op: 'replace', path: '/status', value: 'accepted' }]

/** Returns the status of the only entry. */
async function inBundle(type: string, request: object, resource?: object) {
  const entry = [{ request, ...(resource === undefined ? {} : { resource }) }]
  const answer = await client.post<{
    readonly entry?: readonly { readonly response: { readonly status: string } }[]
  }>('', { resourceType: 'Bundle', type, entry })
  return { status: Number(answer.body.entry?.[0]?.response.status ?? answer.status) }
}

function patchInBundle(type: string, url: string) {
  const data = Buffer.from(JSON.stringify(claim)).toString('base64')
  const resource = { resourceType: 'Binary', contentType: 'application/json-patch+json', data }
  return inBundle(type, { method: 'PATCH', url }, resource)
}

for (const [where, send] of [
  ['alone', (url: string) => client.patch(url, claim)],
  ['in batches', (url: string) => patchInBundle('batch', url)],
  ['in transactions', (url: string) => patchInBundle('transaction', url)],
] as const) {
  t.test(`lets one of racing conditional patches through, ${where}`, async (t) => {
    for (let round = 0; round < 3; round++) {
      const { id } = await client.create(task)
      t.same(await race(() => send(`Task?_id=${id}&status=requested`)), { 200: 1, 404: 9 })
      t.match((await client.get(`Task/${id}`)).body, { meta: { versionId: '2' } })
    }
  })
}

t.test('applies all racing conditional patches if each leaves the match', async (t) => {
  const value = randomUUID()
  const query = `identifier=${encodeURIComponent(`${MRN_SYSTEM}|${value}`)}`
  const phone = (value: string) => ({ system: 'phone', value })
  const { id } = await client.create(
    aPatient({ identifier: [{ system: MRN_SYSTEM, value }], telecom: [phone('0')] }),
  )
  const statuses = await race((i) =>
    client.patch(`Patient?${query}`, [{ op: 'add', path: '/telecom/-', value: phone(`1${i}`) }]),
  )
  t.same(statuses, { 200: 10 })
  const { body } = await client.get<{ telecom: object[] }>(`Patient/${id}`)
  t.equal(body.telecom.length, 11)
})

t.test('updates only a resource that still matches', async (t) => {
  for (let round = 0; round < 3; round++) {
    const { id } = await client.create(task)
    const query = `_id=${id}&status=requested`
    const statuses = await race(() => client.put(`Task?${query}`, { ...task, status: 'accepted' }))
    t.same(statuses, { 200: 1, 201: 9 })
    t.match((await client.get(`Task/${id}`)).body, { meta: { versionId: '2' } })
  }
})

for (const type of ['batch', 'transaction']) {
  t.test(`updates only a resource that still matches, in a ${type}`, async (t) => {
    for (let round = 0; round < 5; round++) {
      const { id } = await client.create(task)
      const url = `Task?_id=${id}&status=requested`
      const racing = race(async (i) => {
        const resource = { ...task, status: 'accepted', description: String(i) }
        return inBundle(type, { method: 'PUT', url }, resource)
      })
      const { 200: updated, 201: created = 0, 409: lost = 0 } = await racing
      t.same([updated, created + lost], [1, 9])
      t.match((await client.get(`Task/${id}`)).body, { meta: { versionId: '2' } })
    }
  })

  t.test(`keeps a concurrent change by another request, in a ${type}`, async (t) => {
    await race(async () => {
      const { id } = await client.create(task)
      const url = `Task?_id=${id}&status=requested`
      const [other, conditional] = await Promise.all([
        client.put(`Task/${id}`, { ...task, id, status: 'accepted' }),
        inBundle(type, { method: 'PUT', url }, { ...task, status: 'received' }),
      ])
      t.equal(other.status, 200)
      t.ok([200, 201, 409].includes(conditional.status), String(conditional.status))
      t.match((await client.get(`Task/${id}`)).body, { status: 'accepted' })
      return other
    })
  })
}

for (const [where, remove] of [
  ['alone', (url: string) => client.del(url)],
  ['in batches', (url: string) => inBundle('batch', { method: 'DELETE', url })],
  ['in transactions', (url: string) => inBundle('transaction', { method: 'DELETE', url })],
] as const) {
  t.test(`deletes only resources that still match, ${where}`, async (t) => {
    for (let round = 0; round < 3; round++) {
      await race(async () => {
        const { id } = await client.create(task)
        const [updated, deleted] = await Promise.all([
          client.put(`Task/${id}`, { ...task, id, status: 'accepted' }),
          remove(`Task?_id=${id}&status=requested`),
        ])
        t.equal(deleted.status, 200)
        const isKept = (await client.get(`Task/${id}`)).status === 200
        // An update behind the deletion is rejected, or restores the resource.
        t.equal(isKept, updated.status < 300)
        return updated
      })
    }
  })
}
