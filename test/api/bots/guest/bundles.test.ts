/** npm packages as esbuild bundles them for Node. */
import { createPublicKey, generateKeyPairSync } from 'node:crypto'
import http, { createServer } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { gzipSync } from 'node:zlib'
import { buildSync } from 'esbuild'
import Handlebars from 'handlebars'
import { jwtVerify } from 'jose'
import t from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import { aBot, execute } from '../../../fixtures/bots/bots.ts'
import { listen } from '../../../fixtures/http/listening.ts'

const botica = await openBotica(t, { worker: true })
const { admin } = botica
const resolveDir = fileURLToPath(new URL('../../../..', import.meta.url))

function bundle(contents: string, minify = false): string {
  const { outputFiles } = buildSync({
    stdin: { contents, resolveDir },
    bundle: true,
    platform: 'node',
    target: 'es2022',
    external: ['@medplum/core'],
    format: 'cjs',
    minify,
    write: false,
  })
  return outputFiles[0]?.text ?? ''
}

type Case = readonly [name: string, source: string, input: unknown, output: unknown]

const cases: readonly Case[] = [
  [
    'papaparse',
    `import Papa from 'papaparse'
     export async function handler(medplum, { input }) {
       const { data, errors } = Papa.parse(input.csv, { header: true, skipEmptyLines: true })
       return [data, errors, Papa.unparse(data)]
     }`,
    { csv: 'name,city\n"Chalmers, Peter",Pleasantville\n\n' },
    [
      [{ name: 'Chalmers, Peter', city: 'Pleasantville' }],
      [],
      'name,city\r\n"Chalmers, Peter",Pleasantville',
    ],
  ],
  [
    'jszip',
    `import JSZip from 'jszip'
     export async function handler(medplum, { input }) {
       const made = await new JSZip().file('a/b.txt', input.text).generateAsync({ type: 'base64', compression: 'DEFLATE' })
       const read = await JSZip.loadAsync(made, { base64: true })
       return [Object.keys(read.files), await read.file('a/b.txt').async('string'), (await read.file('a/b.txt').async('nodebuffer')).length]
     }`,
    { text: 'zipped é' },
    [['a/', 'a/b.txt'], 'zipped é', 9],
  ],
  [
    'xml2js',
    `import { parseStringPromise, Builder } from 'xml2js'
     export async function handler(medplum, { input }) {
       const read = await parseStringPromise(input.xml, { explicitArray: false })
       return [read, new Builder({ headless: true }).buildObject({ a: { b: [1, 2] } })]
     }`,
    { xml: '<order id="7"><item>x &amp; y</item><item>z</item></order>' },
    [{ order: { $: { id: '7' }, item: ['x & y', 'z'] } }, '<a>\n  <b>1</b>\n  <b>2</b>\n</a>'],
  ],
]

for (const [name, source, input, output] of cases) {
  t.test(`runs a bundle of ${name}`, async (t) => {
    for (const isMinified of [false, true]) {
      const id = await aBot(botica, bundle(source, isMinified), { filename: 'index.cjs' })
      t.same((await execute(admin, id, input)).body, output, `minified: ${isMinified}`)
    }
  })
}

t.test('runs precompiled and runtime templates in a bundle of handlebars', async (t) => {
  const compiled = Handlebars.precompile('Dear {{name}},{{#each items}} {{this}}{{/each}}')
  const source = `import Handlebars from 'handlebars'
    const template = Handlebars.template(${compiled})
    export async function handler(medplum, { input }) {
      if (input.text) return Handlebars.compile(input.text)(input)
      return template(input)
    }`
  const id = await aBot(botica, bundle(source), { filename: 'index.cjs' })
  const answer = await execute(admin, id, { name: 'A & B', items: [1, 2] })
  t.equal(answer.text, 'Dear A &amp; B, 1 2')
  const made = await execute(admin, id, { text: 'Dear {{name}}', name: 'A & B' })
  t.equal(made.text, 'Dear A &amp; B')
})

t.test('signs, verifies and encrypts in a bundle of jose', async (t) => {
  const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 })
  const pem = privateKey.export({ type: 'pkcs8', format: 'pem' })
  const source = `import { SignJWT, jwtVerify, importPKCS8, importJWK, exportJWK, CompactEncrypt, compactDecrypt, createLocalJWKSet } from 'jose'
    export async function handler(medplum, { input }) {
      const key = await importPKCS8(input.pem, 'RS384', { extractable: true })
      const { d, p, q, dp, dq, qi, ...open } = await exportJWK(key)
      const token = await new SignJWT({ scope: 'system/*.read' })
        .setProtectedHeader({ alg: 'RS384', kid: 'one' }).setIssuer('a').setAudience('b').setExpirationTime('5m').sign(key)
      const keys = createLocalJWKSet({ keys: [{ ...open, kid: 'one', alg: 'RS384' }] })
      const { payload } = await jwtVerify(token, keys, { issuer: 'a', audience: 'b' })
      const secret = crypto.getRandomValues(new Uint8Array(32))
      const sealed = await new CompactEncrypt(new TextEncoder().encode('inside')).setProtectedHeader({ alg: 'dir', enc: 'A256GCM' }).encrypt(secret)
      const { plaintext } = await compactDecrypt(sealed, secret)
      const spoiled = await jwtVerify(token + 'x', keys).catch((error) => error.code)
      return { token, scope: payload.scope, inside: new TextDecoder().decode(plaintext), spoiled }
    }`
  const id = await aBot(botica, bundle(source), { filename: 'index.cjs' })
  const { body } = await execute(admin, id, { pem })
  t.match(body, {
    scope: 'system/*.read',
    inside: 'inside',
    spoiled: 'ERR_JWS_SIGNATURE_VERIFICATION_FAILED',
  })
  const { payload } = await jwtVerify(body.token, createPublicKey(privateKey))
  t.equal(payload.iss, 'a')
})

t.test('follows redirects and decompresses responses in a bundle of node-fetch 2', async (t) => {
  const server = createServer((request, response) => {
    if (request.url === '/moved') {
      response.writeHead(302, { Location: '/packed' }).end()
    } else if (request.url === '/packed') {
      response.writeHead(200, { 'Content-Encoding': 'gzip' }).end(gzipSync('{"packed":true}'))
    } else {
      let body = ''
      request.on('data', (part) => {
        body += part
      })
      request.on('end', () =>
        response.writeHead(201, { 'X-Seen': String(request.headers['x-own']) }).end(body),
      )
    }
  })
  const port = await listen(t, server)
  const source = `import fetch from 'node-fetch'
    export async function handler(medplum, { input }) {
      const posted = await fetch(input.url + '/echo', { method: 'POST', headers: { 'X-Own': '1' }, body: 'sent é' })
      const moved = await fetch(input.url + '/moved')
      const failed = await fetch('http://nowhere.invalid/').catch((error) => error.name)
      return [posted.status, posted.headers.get('x-seen'), await posted.text(), await moved.json(), moved.redirected, failed]
    }`
  const id = await aBot(botica, bundle(source), { filename: 'index.cjs' })
  const answer = await execute(admin, id, { url: `http://127.0.0.1:${port}` })
  t.same(answer.body, [201, '1', 'sent é', { packed: true }, true, 'FetchError'])
})

t.test(
  'receives bodies that arrive slowly by the HTTP client of Node and a bundle of node-fetch 2',
  async (t) => {
    const server = createServer(async (request, response) => {
      response.write('one ')
      await sleep(60)
      response.write('two ')
      await sleep(60)
      if (request.url === '/broken') response.destroy()
      else response.end('thrée')
    })
    const port = await listen(t, server)
    const source = `import fetch from 'node-fetch'
    import { get } from 'node:http'
    const read = (url) => new Promise((resolve, reject) =>
      get(url, async (response) => {
        const parts = []
        try {
          for await (const part of response) parts.push(part)
          resolve([Buffer.concat(parts).toString(), response.complete])
        } catch (error) {
          reject(error)
        }
      }).on('error', reject))
    const drop = (url) => new Promise((resolve) =>
      get(url, (response) => response.once('data', (part) => resolve(response.destroy() && part.toString().slice(0, 4)))))
    export async function handler(medplum, { input }) {
      const broken = await read(input.url + '/broken').catch((error) => error instanceof Error)
      const response = await fetch(input.url)
      const late = (await fetch(input.url)).text()
      const content = await medplum.download(input.url)
      return [await read(input.url), broken, await drop(input.url), await response.text(), await late, await content.text()]
    }`
    const id = await aBot(botica, bundle(source), { filename: 'index.cjs' })
    const { body } = await execute(admin, id, { url: `http://127.0.0.1:${port}` })
    const all = 'one two thrée'
    t.same(body, [[all, true], true, 'one ', all, all, all])
  },
)

t.test('ends a request of the HTTP client of Node, and its response, as Node does', async (t) => {
  const server = createServer((request, response) => {
    if (request.url === '/begun') response.write('begun')
  })
  const port = await listen(t, server)
  const body = `const watch = (seen, name, emitter) => {
      for (const event of ['abort', 'aborted', 'close']) emitter.on(event, () => seen.push(name + ' ' + event))
      emitter.on('error', ({ message, code }) => seen.push([name, message, code ?? '']))
    }
    const before = (destroy) => new Promise((resolve) => {
      const seen = []
      const request = http.get(url + '/silent')
      watch(seen, 'request', request)
      request.on('socket', () => setTimeout(() => destroy(request), 20))
      request.on('close', () => resolve(seen))
    })
    const after = (destroy) => new Promise((resolve) => {
      const seen = []
      const request = http.get(url + '/begun', (response) => {
        watch(seen, 'response', response)
        response.once('data', () => destroy(request))
        response.on('close', () => resolve(seen.filter((one) => one !== 'request close')))
      })
      watch(seen, 'request', request)
    })
    const own = new Error('own')
    return [await before((request) => request.destroy()), await before((request) => request.destroy(own)),
      await before((request) => request.abort()), await after((request) => request.destroy()),
      (await after((request) => request.destroy(own))).map(String).sort()]`
  const source = `import http from 'node:http'
    export async function handler(medplum, { input: { url } }) { ${body} }`
  const id = await aBot(botica, bundle(source), { filename: 'index.cjs' })
  const url = `http://127.0.0.1:${port}`
  const here = new Function('http', 'url', `return (async () => { ${body} })()`)
  const answer = await execute(admin, id, { url })
  t.same(answer.body, await here(http, url))
  t.same(answer.body[0], [['request', 'socket hang up', 'ECONNRESET'], 'request close'])
})

t.test('drops aborted fetches, and sends streams as bodies', async (t) => {
  const heard: string[] = []
  const server = createServer(async (request, response) => {
    heard.push(String(request.url))
    if (request.url !== '/echo') return
    response.end(Buffer.concat(await request.toArray()))
  })
  const port = await listen(t, server)
  const source = `import { Readable } from 'node:stream'
    export async function handler(medplum, { input: { url } }) {
      const controller = new AbortController()
      const { signal } = controller
      const paths = ['/1', '/2', '/3', '/4', '/5', '/6', '/late']
      const all = Promise.allSettled(paths.map((path) => fetch(url + path, { signal })))
      setTimeout(() => controller.abort(new Error('enough')), 50)
      const reasons = (await all).map(({ reason }) => reason.message)
      const body = Readable.from(['sent ', 'é'])
      const response = await fetch(url + '/echo', { method: 'POST', body, duplex: 'half' })
      return [reasons, await response.text()]
    }`
  const id = await aBot(botica, bundle(source), { filename: 'index.cjs' })
  const { body } = await execute(admin, id, { url: `http://127.0.0.1:${port}` })
  t.same(body, [Array(7).fill('enough'), 'sent é'])
  t.notOk(heard.includes('/late'))
})
