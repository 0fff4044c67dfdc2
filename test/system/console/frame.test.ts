/** Delivery of the console, the size of its pages, and sign-in. */
import { readdirSync, readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { hasChromium } from '../../fixtures/http/chromium.ts'
import { barriers, click, openConsole, reads, signInOn } from '../../fixtures/http/console.ts'
import { aPerson } from '../../fixtures/people.ts'
import { aPatient } from '../../fixtures/resources.ts'

const BUILT = join(import.meta.dirname, '../../../dist/console')
const MOST_KB = 420
const FIRST_KB = 250

const botica = await openBotica(t)
const { services, baseUrl, project, admin } = botica
const html = { Accept: 'text/html,application/xhtml+xml,*/*;q=0.8' }

t.test(
  'it is not there where it is switched off, or where another app has the pages',
  async (t) => {
    for (const env of [{ CONSOLE_ENABLED: 'false' }, { APP_URL: 'https://app.example.com/' }]) {
      const other = await openBotica(t, { env: env as Readonly<Record<string, string>> })
      for (const path of ['console', 'console/bots', 'graphiql']) {
        t.equal((await fetch(`${other.baseUrl}${path}`)).status, 404)
      }
      t.equal((await fetch(other.baseUrl, { headers: html })).status, 200)
    }
  },
)

t.test('redirects browsers to the console and answers programs', async (t) => {
  const browser = await fetch(baseUrl, { headers: html, redirect: 'manual' })
  t.equal(browser.status, 302)
  t.equal(browser.headers.get('location'), '/console')
  t.match(browser.headers.get('vary'), 'Accept')
  const editor = await fetch(`${baseUrl}graphiql`, { redirect: 'manual' })
  t.equal(editor.headers.get('location'), '/console/graphiql')
  const program = await fetch(baseUrl)
  t.match(await program.json(), { name: 'botica' })
})

t.test('every address has the page, under a strict policy that changes each time', async (t) => {
  const policies = new Set<string>()
  for (const path of ['console', 'console/bots', 'console/resources/Patient/1/history/2']) {
    const answer = await fetch(`${baseUrl}${path}`)
    t.equal(answer.status, 200)
    const policy = answer.headers.get('content-security-policy') ?? ''
    policies.add(policy)
    t.match(policy, /^default-src 'none'; script-src 'self'; style-src 'self' 'nonce-[^']{24}'; /)
    t.notMatch(policy, /unsafe|\*|https?:/)
    const text = await answer.text()
    t.notMatch(text.replace(` data-origin="${new URL(baseUrl).origin}"`, ''), /https?:/)
    t.notMatch(text, /<script(?![^>]*src=)|style=|onload=/)
  }
  t.equal(policies.size, 3)
})

t.test('its files are kept by browsers, and come compressed', async (t) => {
  const { script } = JSON.parse(readFileSync(join(BUILT, 'manifest.json'), 'utf8'))
  for (const encoding of ['br', 'gzip', 'identity']) {
    const answer = await fetch(`${baseUrl}console/assets/${script}`, {
      headers: { 'Accept-Encoding': encoding },
    })
    t.equal(answer.status, 200)
    t.equal(answer.headers.get('content-encoding') ?? 'identity', encoding)
    t.equal(answer.headers.get('cache-control'), 'public, max-age=31536000, immutable')
    t.match(answer.headers.get('content-type'), 'text/javascript')
    t.equal(await answer.text(), readFileSync(join(BUILT, script), 'utf8'))
  }
  for (const file of ['manifest.json', `${script}.br`, '..%2fmanifest.json', 'x.js']) {
    t.equal((await fetch(`${baseUrl}console/assets/${file}`)).status, 404, file)
  }
})

t.test(
  `the first page weighs at most ${FIRST_KB} KB with Brotli, any page at most ${MOST_KB} KB`,
  async (t) => {
    const { script, style, preload, pages } = JSON.parse(
      readFileSync(join(BUILT, 'manifest.json'), 'utf8'),
    )
    const weigh = (names: Iterable<string>) =>
      [...new Set(names)].reduce((sum, name) => sum + statSync(join(BUILT, `${name}.br`)).size, 0)
    const frame = [script, style, ...preload]
    const own = Object.entries<string[]>(pages).filter(([path]) => path.startsWith('server/'))
    t.ok(own.length > 1)
    for (const [path, names] of own) {
      const kb = Math.round(weigh([...frame, ...names]) / 1024)
      t.ok(kb <= MOST_KB, `${path}: ${kb} KB`)
    }
    const home = pages['server/console/pages/home/home.tsx']
    const first = Math.round(weigh([...frame, ...home]) / 1024)
    t.ok(first <= FIRST_KB, `the first page: ${first} KB`)
    t.ok(readdirSync(BUILT).length > own.length)
  },
)

t.test('a person signs in and is back where they wanted to be', async (t) => {
  if (!hasChromium()) return t.pass('there is no chromium here')
  const { email } = await aPerson(services, project)
  const { id } = await admin.create(aPatient())
  const page = await openConsole(t, { baseUrl, email, path: '/graphiql?from=link' })
  await page.shows(`location.pathname + location.search === '/console/graphiql?from=link'`)
  await reads(page, 'Schema')
  t.match(await page.value('document.title'), /^GraphQL – /)
  await page.press('#ask')
  await page.shows(`document.querySelector('#answer .cm-content')?.textContent.includes('${id}')`)
  await page.write('.cm-content', '{ PatientList { idd } }')
  await page.press('#ask')
  await page.shows(`document.querySelector('#answer')?.textContent.includes('Cannot query field')`)
  t.same(await barriers(page), [])

  // Another page of the same browser has no token, and gets one by the session.
  await page.value('sessionStorage.clear()')
  await page.goto(`${baseUrl}console`)
  await page.shows(`document.querySelector('#title')`)
  // Chromium itself reports the query that was refused.
  t.same(
    page.complaints.filter((text) => !/status of 400/.test(text)),
    [],
  )

  await page.press('[aria-haspopup=menu]')
  await click(page, 'Sign out')
  await signInOn(page, email)
  t.equal(await page.value('location.pathname'), '/console')
})

t.test('a duplicated tab gets a separate session', async (t) => {
  if (!hasChromium()) return t.pass('there is no chromium here')
  const { email } = await aPerson(services, project)
  const page = await openConsole(t, { baseUrl, email })
  const loginIn = (tab: string) => `JSON.parse(atob(
    JSON.parse(${tab}.sessionStorage.activeLogin).accessToken.split('.')[1])).login_id`
  const own = await page.value<string>(loginIn('window'))
  await page.goto(`${baseUrl}console`)
  await page.shows(`document.querySelector('#title')`)
  t.equal(await page.value(loginIn('window')), own, 'a page that is loaded again keeps its session')
  // A window has a copy of the session storage of the page that opens it, as a duplicated tab has.
  await page.mouse(`document.querySelector('#title')`)
  await page.value(`{ globalThis.twin = open('/console'); true }`)
  await page.shows(`twin.document.querySelector('#title')`)
  t.not(await page.value(loginIn('twin')), own)
  t.equal(await page.value(loginIn('window')), own)
})

t.test('a new page moves the focus to its title, and a view leaves it on its tab', async (t) => {
  if (!hasChromium()) return t.pass('there is no chromium here')
  const { email } = await aPerson(services, project, { details: { admin: true } })
  const { id } = await admin.create({ resourceType: 'Patient', name: [{ family: 'Adeyemi' }] })
  const page = await openConsole(t, { baseUrl, email })
  const focused = (selector: string) => `document.activeElement.matches('${selector}')`
  await page.shows(`document.querySelector('#title')`)
  t.ok(await page.value(focused('body')), 'the first page')
  await page.act(`document.querySelector('nav a[href="/console/resources"]')`, 'found.focus()')
  await page.key('Enter')
  await page.shows(`${focused('#title')} && document.activeElement.textContent === 'Patient'`)
  await page.act(
    `document.querySelector('td a[href="/console/resources/Patient/${id}"]')`,
    'found.focus()',
  )
  await page.key('Enter')
  await page.shows(`${focused('#title')} && document.activeElement.textContent === 'Adeyemi'`)

  await page.act(`document.querySelector('[role=tab][aria-selected=true]')`, 'found.focus()')
  await page.value('window.main = document.querySelector("#title"); true')
  await page.key('ArrowRight')
  await page.shows(`location.pathname.endsWith('/form') && document.querySelector('#save')`)
  t.ok(await page.value(focused('[role=tab][aria-selected=true]')))
  t.equal(await page.value('document.activeElement.textContent'), 'Form')
  await page.key('ArrowRight')
  await page.shows(`document.querySelector('.cm-content')`)
  t.equal(await page.value('document.activeElement.textContent'), 'JSON')
  t.ok(await page.value('window.main.isConnected'), 'the page is not drawn again')
  await page.goto(`${baseUrl}console/resources/Patient/${id}`)
  await page.act(`document.querySelector('a[href$="/form"]')`, 'found.focus()')
  await page.key('Enter')
  await page.shows(`document.querySelector('#save')`)
  t.equal(await page.value('document.activeElement.textContent'), 'Form')

  await page.key('Find')
  await page.shows(`document.activeElement.getAttribute('aria-label')?.startsWith('Search')`)
  await page.keys('Bots')
  await reads(page, 'Page')
  await page.key('Enter')
  await page.shows(`location.pathname === '/console/bots'`)
  await page.shows(`${focused('#title')} && document.activeElement.textContent === 'Bots'`)
  t.same(await barriers(page), [])
})

t.test('a page that fails shows its error, and leaves the others usable', async (t) => {
  if (!hasChromium()) return t.pass('there is no chromium here')
  const { email } = await aPerson(services, project, { details: { admin: true } })
  const page = await openConsole(t, { baseUrl, email })
  // An answer that the page does not expect.
  await page.value(`{
    const send = fetch
    globalThis.fetch = async (input, init) =>
      String(input).endsWith('/schedules') ? Response.json({}) : await send(input, init)
  }`)
  await click(page, 'Schedules')
  await reads(page, 'Something went wrong on this page')
  await reads(page, `Cannot read properties of undefined (reading 'length')`)
  t.notOk(await page.value(`document.body.innerText.includes('The service does not respond')`))
  t.same(await barriers(page), [])

  // A file of an older version is gone after an update.
  const { pages } = JSON.parse(readFileSync(join(BUILT, 'manifest.json'), 'utf8'))
  await page.block([`*/${pages['server/console/pages/policies/list.tsx'][0]}`])
  await click(page, 'Access policies')
  await reads(page, 'The console was updated')
  t.same(await barriers(page), [])
  await page.block([])
  await click(page, 'Reload')
  await reads(page, 'No access policy yet')
})
