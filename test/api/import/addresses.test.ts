/**
 * Allowed import sources, in the kick-off, a manifest and a redirect. Imports the check of addresses, since the
 * tests of imports reach no public host.
 */

import { createServer } from 'node:http'
import t from 'tap'
import { freePort } from '../../../scripts/service.ts'
import { UNRESTRICTED } from '../../../shared/core/config/outbound.ts'
import { importAddress } from '../../../shared/import/kick-off.ts'
import { FetchRefused, openOutbound } from '../../../shared/outbound/fetch-outside.ts'
import { openBotica } from '../../fixtures/botica.ts'
import { ended } from '../../fixtures/exports/exports.ts'
import { listen } from '../../fixtures/http/listening.ts'
import { aPatient } from '../../fixtures/resources.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const botica = await openBotica(t, {
  worker: true,
  env: { DATABASE_URL: await createDatabase(t) },
})
const { admin } = botica

const manifests: Readonly<Record<string, object>> = {
  '/paged': {
    output: [{ type: 'Patient', url: 'one' }],
    link: [{ relation: 'next', url: 'paged?page=2' }],
  },
  '/deletions': {
    output: [{ type: 'Patient', url: 'one' }],
    deleted: [{ type: 'Bundle', url: 'deleted' }],
  },
  '/file': { output: [{ type: 'Patient', url: 'file:///etc/passwd' }] },
  '/nowhere': { output: [{ type: 'Patient' }] },
  '/users': { output: [{ type: 'User', url: 'one' }] },
  '/list': [],
}
const asked: string[] = []
const server = createServer(({ url = '' }, res) => {
  asked.push(url)
  if (url === '/redirect') res.writeHead(302, { Location: '/one' }).end()
  else if (url === '/busy') res.writeHead(503).end()
  else if (url === '/cut') {
    res.writeHead(200, { 'Content-Length': '1000' }).write('{"resourceType":', () => res.destroy())
  } else res.end(JSON.stringify(manifests[url] ?? { ...aPatient(), id: 'one' }))
})
const base = `http://127.0.0.1:${await listen(t, server)}`

const parameters = (...parameter: object[]) => ({ resourceType: 'Parameters', parameter })

t.test('rejects an invalid manifest as a whole, with its errors', async (t) => {
  const cases: readonly (readonly [path: string, text: RegExp])[] = [
    ['/paged', /goes on at another address/],
    ['/deletions', /deletions of the manifest are not imported/],
    ['/file', /at no https address/],
    ['/nowhere', /at no https address/],
    ['/users', /a type that is not imported/],
    ['/list', /not a bulk export manifest/],
  ]
  for (const [path, text] of cases) {
    const begun = await admin.post(
      '$import',
      parameters({ name: 'manifest', valueUrl: `${base}${path}` }),
    )
    const { body } = await ended(admin, begun.headers.get('content-location') ?? '')
    t.equal(body.error.length, 1, path)
    t.match((await admin.get(body.error[0]?.url ?? '')).text, text)
  }
  t.notOk(asked.includes('/one'), 'imports none of them')
})

t.test('reports why an input could not be read', async (t) => {
  const closed = await freePort()
  const patients = (valueUrl: string) =>
    parameters({
      name: 'input',
      part: [
        { name: 'type', valueCode: 'Patient' },
        { name: 'url', valueUrl },
      ],
    })
  const cases: readonly (readonly [body: object, text: RegExp])[] = [
    [patients(`${base}/busy`), /could not be read: it was answered with status 503/],
    [patients(`${base}/cut`), /could not be read: the connection ended early/],
    [patients(`http://127.0.0.1:${closed}/`), /could not be read: .*ECONNREFUSED/],
    [
      parameters({ name: 'manifest', valueUrl: `${base}/busy` }),
      /could not be read: it was answered with status 503/,
    ],
  ]
  await Promise.all(
    cases.map(async ([given, text]) => {
      const begun = await admin.post('$import', given)
      const { body } = await ended(admin, begun.headers.get('content-location') ?? '')
      t.equal(body.error.length, 1)
      t.match((await admin.get(body.error[0]?.url ?? '')).text, text)
    }),
  )
})

t.test('reports errors of an input with their position', async (t) => {
  const part = (...given: object[]) => parameters({ name: 'input', part: given })
  const type = { name: 'type', valueCode: 'Patient' }
  const url = { name: 'url', valueUrl: `${base}/one` }
  const cases: readonly (readonly [body: object, text: RegExp, place: string])[] = [
    [part(url), /Missing required parameter "type"/, 'input[0]'],
    [part(type), /Missing required parameter "url"/, 'input[0]'],
    [part(type, { ...url, valueUrl: 'file:///etc/passwd' }), /https address/, 'input[0].url'],
    [parameters(), /either "input" or "manifest"/, 'input'],
  ]
  for (const [body, text, place] of cases) {
    t.match(await admin.post('$import', body), {
      status: 400,
      body: { issue: [{ details: { text }, expression: [place] }] },
    })
  }
})

t.test('allows only https where only public addresses are allowed', async (t) => {
  const rules = { hookTargets: { ...UNRESTRICTED, reach: 'public' } as const }
  const address = (text: string) => importAddress(rules, text, 'https://example.org/export/')?.href
  t.equal(address('one'), 'https://example.org/export/one')
  t.equal(address('http://example.org/one'), undefined)
  t.equal(address('//example.org:1/one'), 'https://example.org:1/one')
  t.equal(importAddress({ hookTargets: UNRESTRICTED }, `${base}/one`)?.href, `${base}/one`)

  const { signal } = new AbortController()
  const headers = {}
  const get = { url: `${base}/redirect`, method: 'GET', headers, body: undefined }
  const opened = await openOutbound({ ...get, redirect: 'follow' }, UNRESTRICTED, signal)
  opened.body.destroy()
  t.equal(opened.url, `${base}/one`)
  const secure = openOutbound({ ...get, redirect: 'follow', isSecure: true }, UNRESTRICTED, signal)
  t.ok((await secure.catch((error: unknown) => error)) instanceof FetchRefused)
})
