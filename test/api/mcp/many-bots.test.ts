import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { aBot, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { aTool, openModel } from './mcp.ts'

t.test('lists tools and services of callers that see up to 1000 bots', async (t) => {
  const botica = await openBotica(t)
  const { admin, baseUrl } = botica
  const fields = {
    ...aTool('last', { type: 'object' }),
    cdsService: { hook: 'patient-view', title: 'Last', description: 'Last' },
  }
  const create = async (count: number) => {
    const entry = Array.from({ length: count }, () => ({
      resource: { resourceType: 'Bot', name: 'One of many' },
      request: { method: 'POST', url: 'Bot' },
    }))
    const made = await admin.post('', { resourceType: 'Bundle', type: 'batch', entry })
    t.equal(made.status, 200)
  }
  for (let i = 0; i < 3; i++) await create(333)
  await aBot(botica, handler('return 1'), { fields })
  const { names, call } = await openModel(t, baseUrl, admin.token)
  t.ok((await names()).includes('last'))
  t.match((await admin.get<Untyped>('/cds-services')).body, { services: [{ title: 'Last' }] })

  await create(1)
  await t.rejects(names(), { message: /at most 1000 Bots/ })
  t.match(await call('last'), { isError: true, text: /at most 1000 Bots/ })
  t.match(await admin.get('/cds-services'), { status: 400, text: /at most 1000 Bots/ })
  const own = await call('fhir-search', { type: 'Bot', count: 1 })
  t.equal(own.isError, false, 'tools of the service still work')
})
