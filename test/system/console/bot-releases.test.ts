/** A staged version of a bot is compared, gets a share, is made live and rolled back by clicks alone. */
import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import { aBot, execute, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { exitWithoutChromium } from '../../fixtures/http/chromium.ts'
import { barriers, click, openConsole, reads } from '../../fixtures/http/console.ts'
import { aPerson } from '../../fixtures/people.ts'

exitWithoutChromium(t)
const botica = await openBotica(t, { worker: true, env: { BOT_INPUT_ARCHIVE: 'true' } })
const { services, baseUrl, project, admin, superAdmin } = botica
const stored = (await superAdmin.get<Untyped>(`Project/${project.id}`)).body
await superAdmin.put(`Project/${project.id}`, {
  ...stored,
  setting: [{ name: 'BOT_INPUT_ARCHIVE', valueBoolean: true }],
})
const id = await aBot(botica)
const deploy = (body: object) => admin.post<Untyped>(`Bot/${id}/$deploy`, body)
await deploy({ code: handler(`return 'one'`), version: '1.0.0' })
await deploy({ code: handler(`return 'two'`), version: '1.1.0', label: 'staging' })
const { email } = await aPerson(services, project, { details: { admin: true } })
const page = await openConsole(t, { baseUrl, email, path: `/bots/${id}/releases` })
const SHARE = '[aria-label="Share of staging"]'

t.test('lists the versions with their labels, and compares them', async (t) => {
  await reads(page, '1.0.0')
  await reads(page, '1.1.0')
  await click(page, 'Compare with live')
  await reads(page, 'Changes from live to 1.1.0')
  await page.shows(`document.querySelector('pre')?.textContent.includes("+exports.handler")`)
  t.same(await barriers(page), [])
})

t.test('repeats past runs with a version, and shows the answers that differ', async (t) => {
  await until(async () => {
    await execute(admin, id)
    const { body } = await admin.get<Untyped>(`Bot/${id}/$runs`)
    return body.parameter?.some(({ part }: Untyped) =>
      part.some(({ name }: Untyped) => name === 'replayable'),
    )
  }, 60_000)
  await click(page, 'Dry run')
  await reads(page, 'Dry run of 1.1.0')
  await page.shows(`/ 0 the same, [1-9]\\d* different/.test(document.body.innerText)`)
  await page.shows(`[...document.querySelectorAll('tr')].some(({ textContent }) =>
    textContent.includes('one') && textContent.includes('two'))`)
  t.same(await barriers(page), [])
})

t.test('gives a label a share of the calls', async (t) => {
  await page.value(`(() => {
    const select = document.querySelector('${SHARE}')
    Object.getOwnPropertyDescriptor(HTMLSelectElement.prototype, 'value').set.call(select, '100')
    select.dispatchEvent(new Event('change', { bubbles: true }))
  })()`)
  await page.shows(`document.querySelector('${SHARE}')?.value === '100'`)
  t.equal((await execute(admin, id)).text, 'two')
  await page.shows(`document.querySelector('td[data-name="Runs"]')?.textContent === '1'`)
  await page.shows(
    `/\\d m?s$/.test(document.querySelector('td[data-name="Mean time"]')?.textContent)`,
  )
})

t.test('makes a version live, and rolls it back', async (t) => {
  await click(page, 'Make live')
  await reads(page, 'Calls without a label run version 1.1.0 from now on')
  await page.press('[data-confirm]')
  await page.shows(`[...document.querySelectorAll('tr')].some((row) =>
    /1\\.1\\.0/.test(row.textContent) && /live/.test(row.textContent))`)
  t.equal((await execute(admin, id)).text, 'two')
  await click(page, 'Roll back')
  await page.press('[data-confirm]')
  await page.shows(`[...document.querySelectorAll('tr')].some((row) =>
    /1\\.0\\.0/.test(row.textContent) && row.querySelector('td[data-name="Labels"]')?.textContent === 'live')`)
  t.equal((await execute(admin, id)).text, 'one')
  t.same(await barriers(page), [])
})
