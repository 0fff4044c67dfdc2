/**
 * Allow and block lists for outbound requests on behalf of users. Imports the rules of hosts, to try addresses that
 * no test can reach.
 */
import t from 'tap'
import { readConfig } from '../../../shared/core/config/config.ts'
import { blockedReason, readHostRule } from '../../../shared/core/config/outbound.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import { aBot, execute, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { aSubscription, startReceiver } from '../../fixtures/http/receiver.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const rules = (...texts: string[]) =>
  texts.map((text) => readHostRule(text)).filter((rule) => !!rule)

t.test('applies the lists to an address', async (t) => {
  const table: [
    reach: 'public' | 'all',
    only: string,
    never: string,
    url: string,
    to: string,
    may: boolean,
  ][] = [
    ['all', '', '', 'http://example.org/', '10.0.0.1', true],
    ['all', 'example.org', '', 'https://example.org/', '93.184.216.34', true],
    ['all', 'example.org', '', 'https://EXAMPLE.org./', '93.184.216.34', true],
    ['all', 'example.org', '', 'https://a.example.org/', '93.184.216.34', false],
    ['all', '*.example.org', '', 'https://a.b.example.org/', '93.184.216.34', true],
    ['all', '*.example.org', '', 'https://example.org/', '93.184.216.34', false],
    ['all', '*.example.org', '', 'https://notexample.org/', '93.184.216.34', false],
    ['all', 'example.org:8443', '', 'https://example.org/', '93.184.216.34', false],
    ['all', '10.0.0.0/8', '', 'http://inside.example/', '10.9.8.7', true],
    ['all', '10.0.0.0/8', '', 'http://inside.example/', '11.9.8.7', false],
    ['all', '', '10.0.0.0/8', 'http://inside.example/', '10.9.8.7', false],
    ['all', '', 'example.org', 'https://example.org./', '93.184.216.34', false],
    ['all', '', '*.example.org', 'https://a.example.org/', '93.184.216.34', false],
    ['all', 'example.org', 'example.org', 'https://example.org/', '93.184.216.34', false],
    ['all', 'example.org', '93.184.0.0/16', 'https://example.org/', '93.184.216.34', false],
    ['all', '', '127.0.0.1', 'http://127.1/', '127.0.0.1', false],
    ['all', '', '::1', 'http://[::1]:80/', '::1', false],
    ['all', '', 'example.org:25', 'http://example.org/', '93.184.216.34', true],
    ['public', '', '', 'https://example.org:8443/', '93.184.216.34', false],
    ['public', 'example.org:8443', '', 'https://example.org:8443/', '93.184.216.34', true],
    ['public', 'example.org', '', 'https://example.org:8443/', '93.184.216.34', false],
    ['public', 'example.org', '', 'https://example.org/', '10.0.0.1', false],
    ['public', '10.0.0.0/8', '', 'https://example.org/', '10.0.0.1', false],
  ]
  for (const [reach, only, never, url, to, may] of table) {
    const outbound = { reach, only: rules(only), never: rules(never), userAgent: '' }
    const name = `${reach} only ${only} never ${never}: ${url} at ${to}`
    t.equal(blockedReason(outbound, new URL(url), [to]) === undefined, may, name)
    // Before name resolution no allowed address is blocked.
    if (may) t.equal(blockedReason(outbound, new URL(url)), undefined, `${name}, unresolved`)
  }
})

t.test('reports an invalid list at start', async (t) => {
  const env = { DATABASE_URL: 'postgres://x', REDIS_URL: 'redis://x' }
  for (const text of [
    '10.0.0.0/33',
    '10.0.0.0/x',
    '*.10.0.0.1',
    'https://example.org',
    'a b',
    ':80',
  ]) {
    const read = () => readConfig({ ...env, OUTBOUND_DENY: text })
    t.throws(read, { message: `OUTBOUND_DENY names "${text}"` }, text)
  }
})

t.test('restricts bots and Subscriptions to allowed hosts', async (t) => {
  const receiver = await startReceiver(t)
  const { port } = new URL(receiver.url)
  const botica = await openBotica(t, {
    worker: true,
    env: {
      DATABASE_URL: await createDatabase(t),
      WORKER_QUEUES: 'bots-sync,change',
      OUTBOUND_ALLOW: `127.0.0.1:${port}`,
      OUTBOUND_DENY: 'denied.example',
    },
  })
  const { admin } = botica
  const bot = await aBot(
    botica,
    handler(
      `try { return (await fetch(event.input.url)).status } catch (error) { return error.cause.message }`,
    ),
  )
  const fetched = async (url: string) => (await execute(admin, bot, { url })).body
  t.equal(await fetched(`${receiver.url}/bot`), 200)
  t.match(receiver.on('/bot')[0]?.headers, { 'user-agent': /^Botica\/\d/ })
  t.match(await fetched('http://127.0.0.1:1/'), /not among those that are called/)
  t.match(await fetched('https://denied.example/'), /among those that are not called/)

  const hook = (endpoint: string) =>
    admin.post<Untyped>('Subscription', aSubscription('Patient', endpoint))
  const refused = await hook('https://denied.example/hook')
  t.match(refused, {
    status: 400,
    body: { issue: [{ expression: ['Subscription.channel.endpoint'] }] },
  })
  t.match(await hook(`${receiver.url}/hook`), { status: 201 })
  await admin.create({ resourceType: 'Patient' })
  await until(async () => receiver.on('/hook').length === 1, 60_000)
})
