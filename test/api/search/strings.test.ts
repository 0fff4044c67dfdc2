/** Imports the normalization of strings, to check its results directly. */
import t from 'tap'
import { comparedText, searchedText, splitWindows } from '../../../shared/fhir/searched-text.ts'
import { openBotica } from '../../fixtures/botica.ts'
import type { Client } from '../../fixtures/client.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'
import { memberUnder } from '../../fixtures/policy/policy.ts'
import { aPatient } from '../../fixtures/resources.ts'

const botica = await openBotica(t)
const { admin } = botica

async function ids(query: string, client: Client = admin): Promise<string[]> {
  const { status, body } = await client.get<Raw>(query)
  if (status !== 200) throw new Error(`${query}: ${JSON.stringify(body)}`)
  return (body.entry ?? []).map((entry: Raw) => entry.resource.id)
}

const person = async (name: object, more: object = {}) =>
  (await admin.create(aPatient({ name: [name], ...more }))).id ?? ''

const anna = await person(
  { family: 'Carreno Quiñones', given: ['Anna Maria'], suffix: ['M.D.'] },
  {
    address: [{ line: ['12 Main Street', 'Apt. 4-B'], city: 'St. John’s', postalCode: 'A1B 2C3' }],
  },
)
const brien = await person({ family: "O'Brien", given: ['Zoë'] })
const smith = await person({ family: 'Smith-Jones', given: ['Søren'] })
const strauss = await person({ family: 'Strauß', given: ['?'] })

const FOUND: readonly (readonly [query: string, patient: string])[] = [
  ['family=Quinones', anna],
  ['family=quiñ', anna],
  ['given=Maria', anna],
  ['given=mar', anna],
  ['given=Maria Anna', anna],
  ['name=carreno maria', anna],
  ['name=M.D.', anna],
  ['name=MD', anna],
  ['address=Main', anna],
  ['address=street 12', anna],
  ['address=Apt', anna],
  ['address=4B', anna],
  ['address=4-B', anna],
  ['address=St Johns', anna],
  ['address-city=johns', anna],
  ['address-postalcode=2c3', anna],
  ['family=OBrien', brien],
  ["family=o'br", brien],
  ['family=O’Brien', brien],
  ['family:contains=brie', brien],
  ['given=zoe', brien],
  ['family=Smith-Jones', smith],
  ['family=SmithJones', smith],
  ['family=Jones', smith],
  ['family=Smith', smith],
  ['family:contains=th-jo', smith],
  ['family=Strauss', strauss],
  ['family=STRAU', strauss],
  ['given=?', strauss],
]

t.test('finds a string by the beginning of any word', async (t) => {
  for (const [query, patient] of FOUND) t.same(await ids(`Patient?${query}`), [patient], query)
  for (const query of ['family=uinones', 'given=aria', 'address=ain', 'family=ones', 'name=brien'])
    t.same(await ids(`Patient?${query}`), [], query)
  t.same(await ids('Patient?given:missing=true'), [])
  t.same(await ids('Patient?family:exact=Smith-Jones'), [smith])
  t.same(await ids('Patient?family:exact=SmithJones'), [])
})

t.test('narrows the matches with each word', async (t) => {
  for (const words of [
    ['anna', 'maria', 'carreno', 'quinones', 'md'],
    ['anna', 'zoe'],
    ['maria', 'maria', 'mario'],
  ]) {
    let before = await ids(`Patient?name=${words[0]}`)
    for (let n = 2; n <= words.length; n++) {
      const now = await ids(`Patient?name=${words.slice(0, n).join(' ')}`)
      t.ok(
        now.every((id) => before.includes(id)),
        words.slice(0, n).join(' '),
      )
      before = now
    }
  }
  t.same(await ids('Patient?name=anna zoe'), [])
})

const LONG = Array.from({ length: 1000 }, (_, i) => `word${i}`).join('; ')

t.test('finds a long text by every word and part', async (t) => {
  const { id = '' } = await admin.create({
    resourceType: 'ValueSet',
    status: 'draft',
    description: `${LONG} the Résumé's end.`,
  } as Raw)
  const other = await admin.create({
    resourceType: 'ValueSet',
    status: 'draft',
    description: 'word999 begins a text that ends in word0',
  } as Raw)
  const found: readonly (readonly [string, readonly string[]])[] = [
    ['description=word0', [other.id ?? '', id]],
    ['description=resumes', [id]],
    ['description=word500 word998 word2', [id]],
    ['description=word500 word998 word2000', []],
    ['description:contains=ord600 word601 wor', [id]],
    ['description:contains=word600 word602', []],
    ['description:contains=resumes end', [id]],
    [`description:contains=${LONG.slice(4000, 6000)}`, [id]],
    [`description:contains=${LONG.slice(4000, 6000)}x`, []],
    ['_filter=description ew "resumes end"', [id]],
    ['_filter=description ew "word600"', []],
    ['_filter=description ew "word0"', [other.id ?? '']],
  ]
  for (const [query, wanted] of found) {
    t.same(new Set(await ids(`ValueSet?${query}`)), new Set(wanted), query.slice(0, 60))
  }
  t.same(await ids('ValueSet?description:missing=false&_sort=description'), [id, other.id])
  const tooMany = await admin.get(`ValueSet?description=${LONG}`)
  t.match(tooMany, { status: 400, body: { issue: [{ code: 'too-costly' }] } })
})

t.test('finds the same words by policy criteria', async (t) => {
  for (const [query, patient] of FOUND) {
    if (query.includes('$') || query.includes('?')) continue
    const entries = [{ resourceType: 'Patient', criteria: `Patient?${query}` }]
    const { client } = await memberUnder(botica, { entries })
    t.same(await ids('Patient', client), [patient], query)
    for (const one of [anna, brien, smith, strauss]) {
      const { status } = await client.get(`Patient/${one}`)
      t.equal(status, one === patient ? 200 : 404, `${query} and ${one}`)
    }
  }
})

t.test('compares texts by letters and digits', async (t) => {
  t.equal(comparedText('  Éva  MÜLLER\u0000\n'), 'eva muller')
  t.equal(comparedText('ﬁne – "İstanbul", 3.5 %'), 'fine istanbul 35')
  t.equal(comparedText(' ?!  -- '), '?! --')
  t.same(searchedText('Smith-Jones, jo-ann'), {
    start: 'smithjones joann',
    words: ['joann', 'jones', 'jo', 'ann'],
    chunks: [],
  })
})

t.test('finds a part of a long text within one chunk', async (t) => {
  const text = Array.from({ length: 3000 }, (_, i) => (i % 7 === 0 ? '𝔘' : 'ab'.at(i % 2))).join('')
  const whole = comparedText(text.replaceAll('𝔘', '𐐨'))
  const { start, chunks } = searchedText(whole)
  const rows = [start, ...chunks]
  for (let at = 0; at < whole.length; at += 61) {
    const part = comparedText(
      whole
        .slice(at, at + 700)
        .toWellFormed()
        .replaceAll('\ufffd', ''),
    )
    for (const window of splitWindows(part)) t.ok(rows.some((row) => row.includes(window)))
  }
  t.ok(rows.every((row) => Buffer.byteLength(row) < 2600))
})
