/**
 * Every page of the menu, light and dark, on a desktop and on a phone; and the size of the first load. Imports the
 * console's help, to compare it with the pages.
 */
import t from 'tap'
import { HELP } from '../../../server/console/help.ts'
import { openBotica, SYSTEM_PROJECT_ID } from '../../fixtures/botica.ts'
import { aBot, handler } from '../../fixtures/bots/bots.ts'
import { exitWithoutChromium, type Page } from '../../fixtures/http/chromium.ts'
import { barriers, openConsole } from '../../fixtures/http/console.ts'
import { aPerson } from '../../fixtures/people.ts'
import { aPatient } from '../../fixtures/resources.ts'

exitWithoutChromium(t)
const SCHEMES = ['light', 'dark'] as const
const SIZES = [
  [390, 844],
  [1440, 900],
] as const
const MOST_BYTES = 250 * 1024
const botica = await openBotica(t)
const { services, baseUrl, project, admin } = botica
await admin.create(aPatient())
await aBot(botica, handler('return 1'))
await admin.create({
  resourceType: 'AccessPolicy',
  name: 'Ward',
  resource: [{ resourceType: 'Patient', readonly: true }],
})
const administrator = await aPerson(services, project, { details: { admin: true } })
const home = { resourceType: 'Project', id: SYSTEM_PROJECT_ID, name: 'Super Admin' }
const operator = await aPerson(services, home, { details: { admin: true } })

const pages = {
  administrator: await openConsole(t, { baseUrl, email: administrator.email }),
  operator: await openConsole(t, { baseUrl, email: operator.email }),
}

const isShown = `document.querySelector('#main #title') && !document.querySelector('#main [aria-label=Loading]')`

async function menu(page: Page): Promise<readonly string[]> {
  await page.shows(`document.querySelector('nav[aria-label=Pages] a')`)
  return await page.value(
    `[...document.querySelectorAll('nav[aria-label=Pages] a')].map((one) => one.getAttribute('href'))`,
  )
}

/** Changes the colours as a setting in another tab does. */
async function setScheme(page: Page, scheme: (typeof SCHEMES)[number]): Promise<void> {
  await page.value(`{
    const [key, newValue] = ['mantine-color-scheme-value', '${scheme}']
    localStorage.setItem(key, newValue)
    dispatchEvent(new StorageEvent('storage', { key, newValue, storageArea: localStorage }))
  }`)
  await page.shows(`document.documentElement.dataset.mantineColorScheme === '${scheme}'`)
}

for (const [name, page] of Object.entries(pages)) {
  t.test(`all pages of the menu of an ${name}`, async (t) => {
    await page.shows(isShown)
    const addresses = await menu(page)
    t.ok(addresses.length >= 10)
    for (const address of addresses) {
      await page.press(`nav[aria-label=Pages] a[href="${address}"]`)
      const ms = await page.value<number>(`new Promise((resolve) => {
        const start = performance.now()
        const look = () => location.pathname === '${address}' && (${isShown})
          ? resolve(Math.round(performance.now() - start)) : setTimeout(look, 5)
        look()
      })`)
      t.comment(`${address}: shown after ${ms} ms`)
      await page.goto(new URL(address, baseUrl).href)
      await page.shows(isShown)
      for (const scheme of SCHEMES) {
        await setScheme(page, scheme)
        for (const [width, height] of SIZES) {
          await page.resize(width, height)
          await page.shows(`innerWidth === ${width} && ${isShown}`)
          const place = `${address}, ${scheme}, ${width} px`
          t.same(await barriers(page), [], place)
          t.ok(await page.value('document.documentElement.scrollWidth <= innerWidth'), place)
        }
      }
    }
    t.same(page.complaints, [])
  })
}

t.test(`the first load is at most ${MOST_BYTES} bytes`, async (t) => {
  const page = pages.administrator
  for (const path of ['console', 'console/resources/Patient']) {
    await page.goto(`${baseUrl}${path}`)
    await page.shows(isShown)
    await page.shows(
      `document.querySelector('#main table, #main .recharts-surface, #main .mantine-Card-root')`,
    )
    const files = await page.value<readonly { name: string; encoded: number; whole: number }[]>(
      `performance.getEntriesByType('resource').filter(({ name }) => name.includes('/console/assets/'))
        .map(({ name, encodedBodySize: encoded, decodedBodySize: whole }) => ({ name, encoded, whole }))`,
    )
    const sum = files.reduce((bytes, { encoded }) => bytes + encoded, 0)
    t.ok(files.every(({ encoded, whole }) => encoded > 0 && encoded < whole))
    t.ok(sum <= MOST_BYTES, `${path}: ${sum} bytes of ${files.length} files`)
    t.comment(`${path}: ${sum} bytes of ${files.length} files`)
  }
})

t.test('each page of the menu has a page of the documentation', async (t) => {
  for (const path of new Set(Object.values(HELP))) {
    const answer = await fetch(`${baseUrl}docs/${path}`)
    t.equal(answer.status, 200, path)
  }
  for (const address of await menu(pages.administrator)) {
    const [first = ''] = address.replace(/^\/console\/?/, '').split('/')
    t.ok(first in HELP, address)
  }
})
