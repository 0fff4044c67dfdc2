/**
 * Calls from a bot to its worker end with the run. Imports the worker's end of the calls, to end a run between two
 * of them.
 */
import { createServer, type ServerResponse } from 'node:http'
import t from 'tap'
import type { Services } from '../../../../shared/request/services.ts'
import { Bridge } from '../../../../worker/bots/bridge.ts'
import { openBotica, type Tenant, until } from '../../../fixtures/botica.ts'
import type { Untyped } from '../../../fixtures/bots/bots.ts'
import { aJob } from '../../../fixtures/bots/execute-job.ts'
import { listen } from '../../../fixtures/http/listening.ts'

const PATIENCE_MS = 60_000
const botica = await openBotica(t)

async function aBridge(tenant: Tenant, services: Services = botica.services): Promise<Bridge> {
  const query = `ProjectMembership?profile=ClientApplication/${tenant.adminCredentials.id}`
  const { body } = await botica.superAdmin.get<Untyped>(query)
  const membershipId = body.entry[0].resource.id
  const session = await services.principals.forMembership(membershipId)
  if (session === undefined) throw new Error('No session')
  const job = aJob(tenant.project.id, { membershipId })
  const { signal } = new AbortController()
  const markWrite = async () => undefined
  const metrics = { hostCall: () => {} }
  const mintToken = async () => 'token'
  return new Bridge({ services, metrics, session, job, signal, markWrite, mintToken })
}

async function aHolder() {
  const held: ServerResponse[] = []
  const server = createServer((_, res) => void held.push(res))
  const url = `http://127.0.0.1:${await listen(t, server)}/`
  return {
    held,
    release: () => {
      for (const res of held) res.end('late')
    },
    fetchBy: (bridge: Bridge, more = {}) =>
      bridge.answer({ kind: 'fetch', payload: JSON.stringify({ method: 'GET', url, ...more }) }),
  }
}

t.test('drops a write that waits for a quota when its run ends', async (t) => {
  const tenant = await botica.createTenant()
  const { superAdmin } = botica
  const { body: project } = await superAdmin.get<Untyped>(`Project/${tenant.project.id}`)
  const systemSetting = [
    { name: 'enableFhirQuota', valueBoolean: true },
    { name: 'userFhirQuota', valueInteger: 50 },
  ]
  await superAdmin.put(`Project/${project.id}`, { ...project, systemSetting })
  const asked = Promise.withResolvers<void>()
  const { load } = botica.services
  const spend: typeof load.spend = (...args) => {
    asked.resolve()
    return { ...load.spend(...args), resetMs: PATIENCE_MS }
  }
  const bridge = await aBridge(tenant, { ...botica.services, load: { spend } })
  const body = JSON.stringify({ resourceType: 'Basic', code: { text: 'late' } })
  const answer = bridge.answer({
    kind: 'fhir',
    payload: JSON.stringify({ method: 'POST', path: 'Basic', headers: {}, body }),
  })
  await asked.promise
  bridge.end()
  t.match(JSON.parse(await answer), { error: 'The run has ended' })
  t.notOk((await superAdmin.get<Untyped>(`Basic?_project=${project.id}`)).body.entry)
})

t.test('starts no queued calls after a run ends, and completes the others', async (t) => {
  const { held, release, fetchBy } = await aHolder()
  const bridge = await aBridge(botica)
  const answers = Array.from({ length: 8 }, () => fetchBy(bridge))
  await until(async () => held.length === 6, PATIENCE_MS)
  bridge.end()
  release()
  const all = (await Promise.all(answers)).map((text) => JSON.parse(text))
  t.equal(all.filter(({ status }) => status === 200).length, 6)
  t.equal(all.filter(({ error }) => error === 'The run has ended').length, 2)
  t.equal(held.length, 6)
})

t.test('aborts cancelled fetches, and sends none that wait for a place', async (t) => {
  const { held, release, fetchBy } = await aHolder()
  const bridge = await aBridge(botica)
  const ids = [1, 2, 3, 4, 5, 6, 7]
  const answers = ids.map((id) => fetchBy(bridge, { id }))
  await until(async () => held.length === 6, PATIENCE_MS)
  const payload = JSON.stringify({ fetches: [...ids, 99], isCancelled: true })
  t.equal(await bridge.answer({ kind: 'body', payload }), '{}')
  for (const text of await Promise.all(answers)) t.type(JSON.parse(text).error, 'string')
  await until(async () => held.every(({ destroyed }) => destroyed), PATIENCE_MS)
  const last = fetchBy(bridge, { id: 8 })
  await until(async () => held.length === 7, PATIENCE_MS)
  release()
  t.match(JSON.parse(await last), { status: 200 })
  t.equal(held.length, 7)
  bridge.end()
})

t.test('counts operations that may act as effects, by any method', async (t) => {
  const calls: readonly (readonly [method: string, path: string, mayAct: boolean])[] = [
    ['GET', 'Patient/a1', false],
    ['GET', 'Patient?name=$x', false],
    ['GET', 'Patient/a1/$everything?_count=1', false],
    ['GET', 'ValueSet/$expand?url=x', false],
    ['POST', 'Patient/_search', false],
    ['POST', 'Patient/$validate', false],
    ['POST', 'CodeSystem/$lookup', false],
    ['POST', 'Patient', true],
    ['GET', 'Bot/a1/$execute', true],
    ['GET', 'Patient/a1/$own', true],
    ['GET', 'Patient/%24own', true],
    ['GET', '$own/more', true],
    ['POST', 'Patient/a1/$lookup', true],
    ['POST', 'Patient/a1/$expand', true],
    ['GET', 'Agent/a1/$reload-config', true],
    ['GET', 'Agent/a1/$stats', false],
  ]
  for (const [method, path, mayAct] of calls) {
    const bridge = await aBridge(botica)
    await bridge.answer({ kind: 'fhir', payload: JSON.stringify({ method, path, headers: {} }) })
    t.equal(bridge.hasWritten, mayAct, `${method} ${path}`)
    bridge.end()
  }
})
