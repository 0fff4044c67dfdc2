/** Contents of topics and of Subscriptions to them, and the list of topics in the metadata. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { extension } from '../../fixtures/http/receiver.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'
import {
  aFilter,
  aTopic,
  aTopicSubscription,
  aTrigger,
  BACKPORT,
  COMPLETION,
  type TopicOptions,
} from './topics.ts'

const URL_OF = 'http://example.org/SubscriptionTopic/'
const botica = await openBotica(t)
const { admin } = botica
const topic = `${URL_OF}completed`
await admin.create(aTopic(topic, COMPLETION, aFilter('patient'), aFilter('class', 'not')) as never)

t.test('the metadata of the project lists its topics', async (t) => {
  const topicsIn = ({ body }: { body: Raw }) =>
    body.rest[0].resource
      .find(({ type }: Raw) => type === 'Subscription')
      .extension?.map(({ valueCanonical }: Raw) => valueCanonical) ?? []
  t.ok(topicsIn(await admin.get<Raw>('metadata')).includes(topic))
  t.same(topicsIn(await (await botica.createTenant()).admin.get<Raw>('metadata')), [])
})

t.test('replaces a trigger that a client sends', async (t) => {
  const url = 'https://medplum.com/fhir/StructureDefinition/subscription-topic-trigger'
  const forged = { url, extension: [{ url: 'criteria', valueString: 'Patient' }] }
  const form = aTopicSubscription(topic, 'https://example.org/forged', { extension: [forged] })
  const { extension: own } = (await admin.create(form as never)) as Raw
  t.equal(own.length, 1)
  t.equal(own[0].extension[0].valueString, 'Encounter?status=finished')
  const plain = await admin.create({ ...form, criteria: 'Encounter', status: 'off' } as never)
  t.equal(plain.extension, undefined)
})

t.test('rejects a Subscription that cannot be honoured', async (t) => {
  const channel = (more: object) => ({ channel: more as Raw })
  const within = (name: string, value: object) =>
    channel({ extension: [{ url: BACKPORT + name, ...value }] })
  const cases: readonly (readonly [string, TopicOptions, string?])[] = [
    ['Subscription.criteria', {}, `${URL_OF}unknown`],
    ['Subscription.channel.type', channel({ type: 'websocket' })],
    [
      'Subscription.channel.type.extension[0]',
      channel({
        _type: { extension: [{ url: `${BACKPORT}channel-type`, valueCoding: { code: 'zulip' } }] },
      }),
    ],
    ['Subscription.channel.endpoint', channel({ endpoint: 'Bot/1' })],
    ['Subscription.channel.payload', channel({ payload: 'application/fhir+xml' })],
    ['Subscription.channel.payload.extension', channel({ _payload: undefined })],
    ['Subscription.channel.payload.extension[0].valueCode', { content: 'everything' }],
    [
      'Subscription.channel.extension[0].valueUnsignedInt',
      within('heartbeat-period', { valueUnsignedInt: 3 }),
    ],
    ['Subscription.channel.extension[0].valueUnsignedInt', within('timeout', { valueString: '9' })],
    [
      'Subscription.channel.extension[0].valueUnsignedInt',
      within('timeout', { valueUnsignedInt: 500 }),
    ],
    [
      'Subscription.channel.extension[0].valuePositiveInt',
      within('max-count', { valueBoolean: true }),
    ],
    ['Subscription.criteria.extension[0].valueString', { filters: ['status=planned'] }],
    ['Subscription.criteria.extension[0].valueString', { filters: ['Patient?_id=1'] }],
    [
      'Subscription.criteria.extension[1].valueString',
      { filters: ['patient=Patient/1', 'patient:missing=true'] },
    ],
    [
      'Subscription.extension[0]',
      { extension: [extension('subscription-supported-interaction', 'create') as Raw] },
    ],
  ]
  for (const [path, options, criteria = topic] of cases) {
    const form = aTopicSubscription(criteria, 'https://example.org/bad', options)
    const { status, text } = await admin.post('Subscription', form)
    t.equal(status, 400, `${path} ${text}`)
    t.same(JSON.parse(text).issue[0].expression, [path], text)
  }
})

t.test('rejects a topic that cannot be honoured', async (t) => {
  const url = `${URL_OF}bad`
  const trigger = 'Basic.extension[1].extension'
  const withPart = (of: string, part: Raw) => {
    const { extension } = aTrigger(COMPLETION)
    const parts = [extension[0], part, ...extension.slice(1)]
    const topic = aTopic(of, COMPLETION)
    const changed = { ...aTrigger(COMPLETION), extension: parts }
    return { ...topic, extension: [topic.extension[0], changed] }
  }
  const cases: readonly (readonly [string, Raw])[] = [
    ['Basic.extension', { ...aTopic(url, COMPLETION), extension: [aTrigger(COMPLETION)] }],
    ['Basic.extension[2]', aTopic(url, COMPLETION, aTrigger(COMPLETION))],
    [
      'Basic.extension[2]',
      aTopic(url, COMPLETION, {
        ...aTrigger(COMPLETION),
        url: aTrigger({}).url.replace('resource', 'event'),
      }),
    ],
    [`${trigger}[1].valueUri`, aTopic(url, { resource: 'Nothing' })],
    [`${trigger}[2].valueCode`, aTopic(url, { interactions: ['read'] })],
    [`${trigger}[2].extension[0].valueString`, aTopic(url, { query: { current: 'none=1' } })],
    [
      `${trigger}[2]`,
      aTopic(url, { query: { current: 'status=finished', previous: 'status=planned' } }),
    ],
    [
      `${trigger}[2].extension[1]`,
      aTopic(url, { query: { current: 'status=finished', resultForDelete: 'test-passes' } }),
    ],
    [`${trigger}[2].valueString`, aTopic(url, { expression: 'status = ' })],
    ['Basic.extension[2].extension[1].valueString', aTopic(url, COMPLETION, aFilter('none'))],
    [`${trigger}[2].extension[0].url`, aTopic(url, { query: { curent: 'status=finished' } })],
    [`${trigger}[1].url`, withPart(url, { url: 'querycriteria', valueString: 'x' })],
    [`${trigger}[1]`, withPart(url, { url: 'description', valueMarkdown: 'Again' })],
  ]
  for (const [path, resource] of cases) {
    const { status, text } = await admin.post('Basic', resource)
    t.equal(status, 400, `${path} ${text}`)
    t.same(JSON.parse(text).issue[0].expression, [path], text)
  }
  t.equal(
    (await admin.post('Basic', { resourceType: 'Basic', code: { text: 'referral' } })).status,
    201,
  )
})
