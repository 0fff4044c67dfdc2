/** The setup makes a site that web serves, with a search, under a strict content policy. */
import { spawnSync } from 'node:child_process'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { exitWithoutChromium, openPage } from '../../fixtures/http/chromium.ts'
import { allPages, ROOT } from '../../fixtures/page.ts'

exitWithoutChromium(t)
// `npm test` has run it: here it only reports a site that could not be made.
const setup = spawnSync('sh', ['scripts/reference/site.sh'], { cwd: ROOT, encoding: 'utf8' })
const { anonymous, baseUrl } = await openBotica(t)
const pages = allPages().filter((name) => name.startsWith('docs/'))
const toAddress = (page: string) => `/${page.replace(/((?<=\/)index)?\.md$/, '')}`

t.test('the site is made', async (t) => {
  t.same({ status: setup.status, stderr: setup.stderr }, { status: 0, stderr: '' })
})

t.test('each page is served, with all that it loads', async (t) => {
  const loaded = new Set<string>()
  for (const page of pages) {
    const { status, text } = await anonymous.get(toAddress(page))
    t.equal(status, 200, page)
    t.notMatch(text.replace(/<(pre|code)[\s\S]*?<\/\1>/g, ''), '{{', 'no template is left open')
    for (const [, link = ''] of text.matchAll(/(?:src|href)="(\/docs\/[^"#]*)/g)) loaded.add(link)
  }
  t.ok(loaded.size > pages.length)
  t.equal((await anonymous.get('/docs/operate/')).status, 200, 'the page of a folder')
  for (const link of loaded) t.equal((await anonymous.get(link)).status, 200, link)
})

t.test('its search finds a page without violations of the policy', async (t) => {
  const page = await openPage(t)
  await page.goto(`${baseUrl}docs/`)
  // The button does something once the scripts of the page have run.
  await page.shows(`document.querySelector('#localsearch-input') !== null
    || document.querySelector('.VPNavBarSearch button').click()`)
  await page.type('localsearch-input', 'replay')
  await page.press('.results .result[href*="first-hour"]')
  await page.shows(`location.pathname.endsWith('/docs/first-hour')`)
  await page.shows(`document.querySelector('h1').textContent.startsWith('The first hour')`)
  t.same(page.complaints, [])
})
