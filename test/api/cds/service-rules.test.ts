/** `Bot.cdsService` and the extension `bot-cds-hook`: their permitted contents, and the callers who may set them. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { aBot, deploy, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { memberUnder } from '../../fixtures/policy/policy.ts'

const botica = await openBotica(t)
const { admin } = botica
const id = await aBot(botica, handler('return { cards: [] }'))
const { body: bot } = await admin.get<Untyped>(`Bot/${id}`)
const query = 'Patient/{{context.patientId}}'
const service = {
  hook: 'patient-view',
  title: 'Greeter',
  description: 'Greets',
  usageRequirements: 'None',
  prefetch: [{ key: 'patient', query }],
}
const part = (url: string, valueString: string) => ({ url, valueString })
const template = { url: 'prefetch', extension: [part('key', 'patient'), part('query', query)] }
const parts = [
  part('hook', 'patient-view'),
  part('title', 'Greeter'),
  part('description', 'Greets'),
  part('usageRequirements', 'None'),
  template,
]
const hook = (...extension: object[]) => ({
  extension: [{ url: 'urn:botica:bot-cds-hook', extension }],
})
const put = (fields: object) => admin.put<Untyped>(`Bot/${id}`, { ...bot, ...fields })
const listed = async () => (await admin.get<Untyped>('/cds-services')).body.services

t.test('describes a service by the element or by the extension', async (t) => {
  const described = [{ id, ...service, prefetch: { patient: query } }]
  t.equal((await put({ cdsService: service })).status, 200)
  t.same(await listed(), described)
  t.equal((await put(hook(...parts))).status, 200)
  t.same(await listed(), described)
  t.equal((await put(hook(part('hook', 'order-sign'), part('title', 'Signer')))).status, 200)
  t.same(await listed(), [{ id, hook: 'order-sign', title: 'Signer', description: 'Signer' }])
  t.equal((await put({})).status, 200)
  t.same(await listed(), [])
})

t.test('rejects wrong parts, and names their element', async (t) => {
  const prefetch = (...templates: object[]) => ({ cdsService: { ...service, prefetch: templates } })
  const asking = (text: string) => prefetch({ key: 'a', query: text })
  const at = 'Bot.cdsService.prefetch[0].query'
  const many = Array.from({ length: 21 }, (_, i) => ({ key: `k${i}`, query }))
  const inside = 'Bot.extension[0].extension'
  const cases: readonly [object, string, RegExp][] = [
    [{ cdsService: { ...service, hook: 'a hook' } }, 'Bot.cdsService.hook', /name of a hook/],
    [prefetch({ key: 'a b', query }), 'Bot.cdsService.prefetch[0].key', /1 to 64 letters/],
    [
      prefetch({ key: 'a', query }, { key: 'a', query }),
      'Bot.cdsService.prefetch[1].key',
      /keys must differ/,
    ],
    [prefetch(...many), 'Bot.cdsService.prefetch[20]', /at most 20/],
    [asking(`Patient?name=${'x'.repeat(2000)}`), at, /at most 2000/],
    [asking('Patient/{{context.patient.id}}'), at, /token must be/],
    [asking('Patient/{{patientId}}'), at, /token must be/],
    [asking('https://example.org/Patient/1'), at, /must read a resource or search/],
    [asking('/Patient/1'), at, /must read/],
    [asking('Person1/1'), at, /must read/],
    [asking('Patient'), at, /must read/],
    [asking('Bot/1/$execute'), at, /must read/],
    [asking('Patient/$match'), at, /must read/],
    [asking('Patient/1/_history'), at, /must read/],
    [hook(part('title', 'x')), 'Bot.extension[0]', /must have a hook/],
    [hook(part('hook', 'x')), 'Bot.extension[0]', /must have a title/],
    [hook(...parts, part('hook', 'x')), `${inside}[5]`, /must be one hook/],
    [hook(...parts, part('colour', 'x')), `${inside}[5].url`, /The parts of this extension are/],
    [
      hook(...parts, { url: 'prefetch', extension: [part('key', 'b')] }),
      `${inside}[5]`,
      /must have a query/,
    ],
    [
      hook(...parts, { url: 'prefetch', extension: [part('key', 'b'), part('query', 'x')] }),
      `${inside}[5].extension[1]`,
      /must read/,
    ],
    [{ cdsService: service, ...hook(...parts) }, 'Bot.extension[0]', /either/],
  ]
  for (const [fields, expression, text] of cases) {
    const { status, body } = await put(fields)
    t.match({ status, ...body.issue?.[0] }, { status: 400, expression: [expression] })
    t.match(body.issue?.[0].details.text, text)
  }
})

t.test('accepts the templates of the specification', async (t) => {
  for (const text of [
    'Observation?patient={{context.patientId}}&code=4548-4&_count=1&_sort=-date',
    'PractitionerRole?_id={{userPractitionerRoleId}}&_include=PractitionerRole:practitioner',
    'Practitioner/{{userPractitionerId}}',
    '{{context.userId}}',
  ]) {
    const cdsService = { ...service, prefetch: [{ key: 'data', query: text }] }
    t.equal((await put({ cdsService })).status, 200, text)
  }
})

t.test('lets only administrators and policies that name Bot make a service', async (t) => {
  const { client } = await memberUnder(botica, { entries: [{ resourceType: '*' }] })
  const named = await memberUnder(botica, { entries: [{ resourceType: 'Bot' }] })
  for (const fields of [{ cdsService: service }, hook(...parts)]) {
    const mine = { resourceType: 'Bot', name: 'Mine', ...fields }
    t.equal((await client.post('Bot', mine)).status, 403)
    const made = await named.client.post('Bot', mine)
    t.equal(made.status, 201)
    t.equal((await deploy(named.client, String(made.body.id), handler('return 1'))).status, 200)
  }
})
