/** A bot made from a template, written with completion, and tested next to its code and log. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { exitWithoutChromium } from '../../fixtures/http/chromium.ts'
import { barriers, click, OPEN_MENU, openConsole, reads } from '../../fixtures/http/console.ts'
import { aPerson } from '../../fixtures/people.ts'

exitWithoutChromium(t)
const botica = await openBotica(t, { worker: true })
const { services, baseUrl, project } = botica
const { email } = await aPerson(services, project, { details: { admin: true } })
const page = await openConsole(t, { baseUrl, email, path: '/bots', timeZone: 'Asia/Tokyo' })

const CODE = '[aria-label="Code of the bot"]'
const START = `import type { BotEvent, MedplumClient } from '@medplum/core'
import type { Patient } from '@medplum/fhirtypes'
export async function handler(medplum: MedplumClient, event: BotEvent<Patient>) {`
const SUGGESTIONS = `document.querySelector('.cm-tooltip-autocomplete')?.textContent`

t.test('a new bot gets the code of a template', async (t) => {
  await click(page, 'New bot')
  await page.write('[role=dialog] input', 'Result')
  await page.write('[role=dialog] input[placeholder="Empty bot"]', 'Patient of')
  await reads(page, 'one line with its patient')
  t.same(await barriers(page, OPEN_MENU), [])
  await click(
    page,
    'Patient of resultInput: an Observation. Answer: one line with its patient and its performer.',
  )
  await page.press('[role=dialog] button[type=submit]')
  await page.shows(
    `document.querySelector('${CODE}')?.textContent.includes('BotEvent<Observation>')`,
  )
})

t.test('members of the client, the event and FHIR types are completed', async (t) => {
  const begin = async (line: string) => {
    await page.write(CODE, `${START}\n  ${line}`)
  }
  await begin('await med')
  await page.keys('plum.createRes')
  await page.shows(`${SUGGESTIONS}?.includes('createResourceIfNoneExist')`)
  await reads(page, 'Creates a new FHIR resource')
  t.same(await barriers(page), [])
  await begin('const { KEY } = event')
  await page.keys('.sec')
  await page.shows(`${SUGGESTIONS}?.includes('secrets')`)
  await begin('return event.input.name[0]')
  await page.keys('.fam')
  await page.shows(`${SUGGESTIONS}?.includes('family')`)
  await begin(`await medplum.searchResources('Pat`)
  await page.keys('ien')
  await page.shows(`${SUGGESTIONS}?.includes('Patient')`)
})

t.test('a wrong type is marked and explained while typing', async (t) => {
  const mark = `document.querySelector('.cm-lintRange-warning')?.textContent`
  await page.write(CODE, `${START}\n  return event.input.nmae\n}\n`)
  await page.shows(`${mark} === 'nmae'`)
  await page.hover(`document.querySelector('.cm-lintRange-warning')`)
  await reads(page, "Property 'nmae' does not exist on type 'Patient'")
  t.same(await barriers(page), [])
  await page.write(CODE, `${START}\n  return event.input.name\n}\n`)
  await page.shows(`${mark} === undefined`)
})

t.test('the log is read next to the code, in the zone of the reader', async (t) => {
  await reads(page, 'Listening')
  await page.write(
    CODE,
    `export const handler = async (medplum: unknown, event: unknown) => console.log('heard')\n`,
  )
  await page.press('#deploy')
  await reads(page, 'Deployed: the next run uses this code')
  await page.press('#run')
  await page.shows(`document.querySelector('#live')?.textContent.includes('heard')`)
  const [, shown = ''] =
    /(\S+ \S+) INFO heard/.exec(await page.value(`document.querySelector('#live').textContent`)) ??
    []
  const aheadOfUtc = (Date.parse(`${shown.replace(' ', 'T')}Z`) - Date.now()) / 3_600_000
  t.equal(Math.round(aheadOfUtc), 9, shown)
  // The editor is made again with the deployed source.
  const left = (name: string) => `document.querySelector('${name}').getBoundingClientRect().left`
  await page.shows(`${left(CODE)} < ${left('[aria-label="Input"]')}`)
  await page.shows(`${left(CODE)} < ${left('#live')}`)
})

t.test('on a phone the three are below each other', async (t) => {
  await page.resize(390, 844)
  await page.shows(
    `document.querySelector('#run').getBoundingClientRect().top > document.querySelector('#deploy').getBoundingClientRect().bottom`,
  )
  await page.shows('document.documentElement.scrollWidth <= innerWidth')
  t.same(await barriers(page), [])
})
