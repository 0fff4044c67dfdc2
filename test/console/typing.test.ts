/** Values of every datatype, typed key by key into the form of a record: nothing is lost, and digits stay. */
import t from 'tap'
import { openBotica } from '../fixtures/botica.ts'
import { hasChromium } from '../fixtures/http/chromium.ts'
import { barriers, click, openConsole, reads } from '../fixtures/http/console.ts'
import { aPerson } from '../fixtures/people.ts'

if (!hasChromium()) {
  t.pass('there is no chromium here')
  process.exit()
}
const botica = await openBotica(t)
const { services, baseUrl, project, admin } = botica
const { email } = await aPerson(services, project, { details: { admin: true } })
const page = await openConsole(t, { baseUrl, email, path: '/resources' })

/** A value, as JSON with `‹›` around what is typed over; the element that it is typed into; what is typed, if other than stored. */
interface Case {
  readonly value: string
  readonly into?: string
  readonly typed: string
  /** As it is stored, where that is no string. */
  readonly stored?: string
}

/** One for each type of `value[x]`, which are all datatypes that an element can have. */
const CASES: Readonly<Record<string, Case>> = {
  base64Binary: { value: '‹"Qm90aWNh"›', typed: 'Rm9ybXM=' },
  boolean: { value: '‹true›', typed: 'false', stored: 'false' },
  canonical: { value: '‹"http://example.org/q|1"›', typed: 'http://example.org/q|2' },
  code: { value: '‹"red"›', typed: 'dark-blue' },
  date: { value: '‹"1985-07-09"›', typed: '1986-12-31' },
  dateTime: { value: '‹"2026-03-01T10:00:00+01:00"›', typed: '2026-04' },
  decimal: { value: '‹1.50›', typed: '20.0500', stored: '20.0500' },
  id: { value: '‹"a-1"›', typed: 'B.2' },
  instant: { value: '‹"2026-03-01T10:00:00.120Z"›', typed: '2026-03-02T10:00:00.100+02:00' },
  integer: { value: '‹-7›', typed: '-12', stored: '-12' },
  markdown: { value: '‹"# One\\n\\ntwo"›', typed: '*bold* text' },
  oid: { value: '‹"urn:oid:1.2.3"›', typed: 'urn:oid:2.16.840' },
  positiveInt: { value: '‹3›', typed: '14', stored: '14' },
  string: { value: '‹"one"›', typed: 'two, with "quotes"' },
  time: { value: '‹"10:30:00"›', typed: '23:59:59' },
  unsignedInt: { value: '‹5›', typed: '0', stored: '0' },
  uri: { value: '‹"urn:a"›', typed: 'urn:b:c' },
  url: { value: '‹"http://example.org/a"›', typed: 'https://example.org/b?c=d' },
  uuid: {
    value: '‹"urn:uuid:c757873d-ec9a-4326-a141-556f43239520"›',
    typed: 'urn:uuid:00000000-ec9a-4326-a141-556f43239520',
  },
  Address: { value: '{"line":["1 Road","Flat 2"],"city":‹"Leeds"›}', into: 'city', typed: 'York' },
  Age: quantity('41', 'a'),
  Annotation: { value: '{"time":"2026-03-01","text":‹"seen"›}', into: 'text', typed: 'seen twice' },
  Attachment: {
    value: '{"contentType":"text/plain","title":‹"Letter"›}',
    into: 'title',
    typed: 'Report',
  },
  CodeableConcept: {
    value: '{"coding":[{"system":"urn:s","code":"x"}],"text":‹"Cough"›}',
    into: 'text',
    typed: 'Cold',
  },
  Coding: { value: '{"system":"urn:s","code":‹"x"›}', into: 'code', typed: 'y-2' },
  ContactPoint: {
    value: '{"system":"phone","value":‹"+44 1"›,"rank":1}',
    into: 'value',
    typed: '+44 20 7946',
  },
  Count: quantity('3', '1', '4'),
  Distance: quantity('1.0', 'km'),
  Duration: quantity('2.50', 'h'),
  HumanName: {
    value: '{"family":‹"Chalmers"›,"given":["Peter","James"]}',
    into: 'family',
    typed: 'O’Brien',
  },
  Identifier: { value: '{"system":"urn:mrn","value":‹"42"›}', into: 'value', typed: '0043' },
  Money: {
    value: '{"value":‹10.10›,"currency":"EUR"}',
    into: 'value',
    typed: '9.90',
    stored: '9.90',
  },
  Period: { value: '{"start":"2026-01","end":‹"2026-02"›}', into: 'end', typed: '2026-02-28' },
  Quantity: quantity('72.00', '/min'),
  Range: {
    value: '{"low":{"value":‹1.10›},"high":{"value":2.20}}',
    into: 'low value',
    typed: '1.20',
    stored: '1.20',
  },
  Ratio: {
    value: '{"numerator":{"value":1.0},"denominator":{"value":‹128›}}',
    into: 'denominator value',
    typed: '64.0',
    stored: '64.0',
  },
  Reference: { value: '{"type":"Patient","display":‹"Ann"›}', into: 'display', typed: 'Bea' },
  SampledData: {
    value: '{"origin":{"value":0.0},"period":‹10.0›,"dimensions":1,"data":"1 2 3"}',
    into: 'period',
    typed: '20.00',
    stored: '20.00',
  },
  Signature: {
    value:
      '{"type":[{"code":"1.2.840.10065.1.12.1.1"}],"when":‹"2026-03-01T10:00:00Z"›,"who":{"display":"Ann"}}',
    into: 'when',
    typed: '2026-03-02T11:00:00Z',
  },
  Timing: {
    value: '{"repeat":{"frequency":1,"period":‹1.50›,"periodUnit":"d"}}',
    into: 'repeat period',
    typed: '2.250',
    stored: '2.250',
  },
  ContactDetail: { value: '{"name":‹"Desk"›}', into: 'name', typed: 'Front desk' },
  Contributor: { value: '{"type":"author","name":‹"Ann"›}', into: 'name', typed: 'Bea' },
  DataRequirement: {
    value: '{"type":"Patient","limit":‹3›}',
    into: 'limit',
    typed: '40',
    stored: '40',
  },
  Expression: {
    value: '{"language":"text/fhirpath","expression":‹"1"›}',
    into: 'expression',
    typed: '1 + 1',
  },
  ParameterDefinition: {
    value: '{"use":"in","min":‹0›,"type":"string"}',
    into: 'min',
    typed: '1',
    stored: '1',
  },
  RelatedArtifact: {
    value: '{"type":"citation","display":‹"A paper"›}',
    into: 'display',
    typed: 'A book',
  },
  TriggerDefinition: { value: '{"type":"named-event","name":‹"go"›}', into: 'name', typed: 'went' },
  UsageContext: {
    value: '{"code":{"code":"age"},"valueQuantity":{"value":‹1.0›}}',
    into: 'valueQuantity value',
    typed: '2.0',
    stored: '2.0',
  },
  Dosage: { value: '{"sequence":1,"text":‹"once"›}', into: 'text', typed: 'twice a day' },
  Meta: { value: '{"source":‹"urn:here"›}', into: 'source', typed: 'urn:there' },
}

function quantity(number: string, unit: string, typed = '33.0'): Case {
  const rest = `"unit":"${unit}","system":"http://unitsofmeasure.org","code":"${unit}"`
  return { value: `{"value":‹${number}›,${rest}}`, into: 'value', typed, stored: typed }
}

const SIZE = 10
/** What the form does not show is kept as it is. */
const UNSEEN =
  '"text":{"status":"generated","div":"<div xmlns=\\"http://www.w3.org/1999/xhtml\\">A  <b>task</b></div>"},"extension":[{"url":"urn:x","valueDecimal":3.140}]'

t.test('the cases are all types of value[x]', async (t) => {
  const url = 'http://hl7.org/fhir/StructureDefinition/Task'
  const { body } = await admin.get<Found>(`StructureDefinition?url=${url}`)
  const elements = body.entry[0]?.resource.snapshot.element ?? []
  const types = elements.find(({ path }) => path === 'Task.input.value[x]')?.type ?? []
  t.same(Object.keys(CASES).toSorted(), types.map(({ code }) => code).toSorted())
})

interface Found {
  readonly entry: readonly {
    readonly resource: { readonly snapshot: { readonly element: readonly Definition[] } }
  }[]
}

interface Definition {
  readonly path: string
  readonly type?: readonly { readonly code: string }[]
}

const names = Object.keys(CASES)
for (let from = 0; from < names.length; from += SIZE) {
  const some = names.slice(from, from + SIZE)
  t.test(`${some.join(', ')} are emptied, typed again and saved`, async (t) => {
    const { id, text: before } = await aTask(some)
    await page.goto(`${baseUrl}console/resources/Task/${id}`)
    for (const name of some) {
      const { into = '', typed } = caseOf(name)
      const field = await focused(`${elementOf(name)} ${into}`)
      await page.key('All')
      await page.key('Backspace')
      if (name !== 'boolean') {
        t.equal(await page.value('document.activeElement.value'), '', `${name} is shown empty`)
      }
      await page.keys(typed)
      t.equal(await page.value(`${field} === document.activeElement`), true, `${name} keeps focus`)
      t.equal(await page.value(`${field}.value`), typed, name)
    }
    await page.press('#save')
    await isSaved()
    const expected = some.reduce((text, name) => {
      const { value, typed, stored = JSON.stringify(typed) } = caseOf(name)
      const own = `"${elementOf(name)}":`
      return text.replace(own + plain(value), own + value.replace(/‹.*›/, () => stored))
    }, before)
    t.equal(await contentOf(id), expected)
  })
}

t.test('an emptied value is saved only after a question that names it', async (t) => {
  const { id, text: before } = await aTask(['HumanName', 'date'])
  await page.goto(`${baseUrl}console/resources/Task/${id}`)
  await focused('valueDate')
  await page.key('All')
  await page.key('Backspace')
  await page.press('#save')
  await reads(page, 'Saving removes this')
  await reads(page, '1985-07-09')
  t.same(await barriers(page), [])
  await click(page, 'Keep editing')
  await page.shows(`document.querySelector('[data-element=valueDate] input').value === ''`)
  t.equal(await contentOf(id), before, 'nothing was sent')
  await focused('valueDate')
  await page.keys('1985')
  await page.press('#save')
  await isSaved()
  t.equal(await contentOf(id), before.replace('1985-07-09', '1985'))
})

t.test('an element goes by its own button, with its extensions', async (t) => {
  const patient = await admin.create({
    resourceType: 'Patient',
    name: [{ family: 'Mayer' }],
    birthDate: '1985-07-09',
    _birthDate: { extension: [{ url: 'urn:x', valueString: 'guessed' }] },
    gender: 'female',
  })
  await page.goto(`${baseUrl}console/resources/Patient/${patient.id}`)
  await page.press('[aria-label="Remove birthDate"]')
  await page.press('#save')
  await reads(page, 'guessed')
  await page.press('[data-confirm]')
  await isSaved()
  const { body } = await admin.get(`Patient/${patient.id}`)
  t.match(body, { name: [{ family: 'Mayer' }], gender: 'female' })
  t.notHas(body, 'birthDate')
  t.notHas(body, '_birthDate')
})

t.test('the first item of a list is emptied and typed again in its place', async (t) => {
  const besides = [null, { extension: [{ url: 'urn:x', valueString: 'b' }] }, { id: 'third' }]
  const patient = await admin.create({
    resourceType: 'Patient',
    name: [{ given: ['Ann', 'Bea', null], _given: besides }, { family: 'Two' }],
  })
  await page.goto(`${baseUrl}console/resources/Patient/${patient.id}`)
  await focused('name given')
  await page.key('All')
  await page.key('Backspace')
  t.equal(await page.value(`document.querySelectorAll('[data-element=given] input').length`), 3)
  await page.keys('Zoe')
  await page.press('#save')
  await isSaved()
  const saved = await admin.get(`Patient/${patient.id}`)
  t.same(saved.body.name, [{ given: ['Zoe', 'Bea', null], _given: besides }, { family: 'Two' }])
  await page.press('[aria-label="Remove given 1"]')
  await page.press('#save')
  await reads(page, 'name[0].given[0]')
  await page.press('[data-confirm]')
  await isSaved()
  const shorter = await admin.get(`Patient/${patient.id}`)
  t.same(shorter.body.name, [{ given: ['Bea', null], _given: besides.slice(1) }, { family: 'Two' }])
})

t.test('a version that somebody else has saved meanwhile is not overwritten', async (t) => {
  const patient = await admin.create({
    resourceType: 'Patient',
    name: [{ family: 'Mayer' }],
    birthDate: '1985-07-09',
  })
  await page.goto(`${baseUrl}console/resources/Patient/${patient.id}`)
  await focused('birthDate')
  await page.key('All')
  await page.keys('1990-01-02')
  const { meta: _, ...theirs } = { ...patient, name: [{ family: 'Meyer' }], gender: 'other' }
  await admin.put(`Patient/${patient.id}`, theirs)
  await page.press('#save')
  await reads(page, 'Version 2 was saved while you were typing')
  t.equal(
    await page.value(`document.querySelector('[data-element=birthDate] input').value`),
    '1990-01-02',
  )
  await click(page, 'Compare with version 2')
  await page.shows(`document.querySelector('.cm-mergeView .cm-changedLine')`)
  t.same(await barriers(page), [])
  await click(page, 'Apply my changes to version 2')
  await page.shows(`document.querySelector('[data-element=family] input').value === 'Meyer'`)
  t.equal(
    await page.value(`document.querySelectorAll('[role=alert]').length`),
    0,
    'it is dealt with',
  )
  await page.press('#save')
  await isSaved()
  const { body } = await admin.get(`Patient/${patient.id}`)
  t.match(body, {
    meta: { versionId: '3' },
    name: [{ family: 'Meyer' }],
    gender: 'other',
    birthDate: '1990-01-02',
  })
})

t.test(
  'a new element is typed into at once, and what is no number is refused with its place',
  async (t) => {
    const patient = await admin.create({ resourceType: 'Patient', name: [{ family: 'Mayer' }] })
    await page.goto(`${baseUrl}console/resources/Patient/${patient.id}`)
    await page.shows(`document.querySelector('[data-element=name] input')`)
    await page.value(
      `[...document.querySelectorAll('input[aria-label="Add an element"]')].at(-1).focus()`,
    )
    await page.keys('multipleBirthInt')
    await page.key('ArrowDown')
    await page.key('Enter')
    await page.shows(`document.activeElement.name === 'multipleBirthInteger'`)
    await page.keys('two')
    await page.press('#save')
    await reads(page, 'Patient.multipleBirth')
    t.equal(await page.value('document.querySelector("[name=multipleBirthInteger]").value'), 'two')
    await focused('multipleBirthInteger')
    await page.key('All')
    await page.keys('2')
    await page.press('#save')
    await isSaved()
    t.match((await admin.get(`Patient/${patient.id}`)).body, { multipleBirthInteger: 2 })
    t.same(await barriers(page), [])
  },
)

t.test('an older version comes back with its digits', async (t) => {
  const { id, text: before } = await aTask(['decimal'])
  const task = JSON.parse(before)
  await admin.put(`Task/${id}`, { ...task, id, input: undefined })
  await page.goto(`${baseUrl}console/resources/Task/${id}/history`)
  await click(page, 'Bring back version 1')
  await reads(page, 'Brought back as the newest version')
  t.equal(await contentOf(id), before)
})

/** A Task with an input of each of these types. Returns its content as it is stored. */
async function aTask(names: readonly string[]) {
  const inputs = names.map((name) => {
    return `{"type":{"text":"${name}"},"${elementOf(name)}":${plain(caseOf(name).value)}}`
  })
  const body = `{"resourceType":"Task",${UNSEEN},"status":"draft","intent":"order","input":[${inputs}]}`
  const headers = { 'Content-Type': 'application/fhir+json' }
  const answer = await admin.post('Task', body, headers)
  t.equal(answer.status, 201, answer.text)
  const { id = '' } = answer.body
  return { id, text: await contentOf(id) }
}

/** The notification is there once the service has answered, the fields once they show what it has. */
async function isSaved(): Promise<void> {
  await page.shows(
    `document.body.innerText.includes('Saved') && !document.querySelector('[inert]')`,
  )
  await page.press('[role=alert] [aria-label=Close], .mantine-Notification-closeButton')
  await page.shows(`!document.body.innerText.includes('Saved')`)
}

async function contentOf(id: string): Promise<string> {
  const { text } = await admin.get(`Task/${id}`)
  return text.replace(/"meta":\{[^}]*\},/, '')
}

function caseOf(name: string): Case {
  const found = CASES[name]
  if (found === undefined) throw new Error(`No case for ${name}`)
  return found
}

function elementOf(name: string): string {
  return `value${name.charAt(0).toUpperCase()}${name.slice(1)}`
}

function plain(value: string): string {
  return value.replace(/[‹›]/g, '')
}

/** Puts the focus into the input below these elements. Returns an expression for it. */
async function focused(elements: string): Promise<string> {
  const path = elements
    .trim()
    .split(' ')
    .map((name) => `[data-element=${name}]`)
  const field = `document.querySelector('${path.join(' ')} :is(input, textarea, select)')`
  await page.shows(`${field} && !${field}.disabled`)
  await page.value(`${field}.focus()`)
  return field
}
