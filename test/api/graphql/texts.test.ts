/** Fields are copied from the stored text when possible, and serialized otherwise. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { ask } from '../../fixtures/graphql.ts'

const { admin } = await openBotica(t)

const patient = await admin.create({
  resourceType: 'Patient',
  active: true,
  name: [
    { family: 'O"Brien \\ Ünal\n', given: ['}],"a":{'], use: 'official' },
    { given: ['Ann', 'Bo'], _given: [null, { id: 'second' }] },
  ],
  _birthDate: { extension: [{ url: 'http://example.com/time', valueString: 'noon' }] },
  birthDate: '1956-05-12',
  multipleBirthInteger: 2,
  extension: [
    { url: 'http://example.com/odd', valueDecimal: 1.5 },
    { url: 'http://example.com/weight', valueQuantity: { value: 70.25, unit: 'kg' } },
  ],
  contact: [{ relationship: [{ text: 'friend' }], name: { family: 'X' } }],
})

const FIELDS = `__typename id resourceType active birthDate _birthDate { extension { url valueString } }
  name { family use given _given { id } period { start } } multipleBirthInteger multipleBirthBoolean
  extension { url valueDecimal valueQuantity { value unit } }
  contact { __typename relationship { text coding { code } } name { family given } } photo { url }`

/** An expression may use any element, which forces a parse of the whole resource. */
const WHOLE = 'whole: name(fhirpath: "true") { use }'

t.test('returns equal fields from text and from values', async (t) => {
  const list = (more: string) =>
    ask(admin, `{ PatientList(_id: "${patient.id}") { ${FIELDS} ${more} } }`)
  const [plain, whole] = [await list(''), await list(WHOLE)]
  const [shown] = (plain.body.data?.PatientList ?? []) as Record<string, unknown>[]
  const [{ whole: _whole, ...valued } = {}] = (whole.body.data?.PatientList ?? []) as Record<
    string,
    unknown
  >[]

  t.equal(plain.body.errors, undefined)
  t.match(shown, { id: patient.id, resourceType: 'Patient', birthDate: '1956-05-12' })
  t.match(shown?.name, [{ family: 'O"Brien \\ Ünal\n' }, { given: ['Ann', 'Bo'] }])
  t.same(shown, valued)
})

t.test('returns equal references from text and from values', async (t) => {
  const observation = await admin.create({
    resourceType: 'Observation',
    status: 'final',
    code: { text: 'Weight' },
    subject: { reference: `Patient/${patient.id}`, display: 'She' },
    performer: [{ display: 'nobody' }, { reference: `Patient/${patient.id}` }],
  })
  const target = 'reference display resource(optional: true) { ... on Patient { id birthDate } }'
  const list = (more: string) =>
    ask(
      admin,
      `{ ObservationList(_id: "${observation.id}") { id subject { ${target} } performer { ${target} } ${more} } }`,
    )
  const [plain, whole] = [await list(''), await list('whole: note(fhirpath: "true") { text }')]
  const person = { id: patient.id, birthDate: '1956-05-12' }
  const reference = `Patient/${patient.id}`

  t.same(plain.body, {
    data: {
      ObservationList: [
        {
          id: observation.id,
          subject: { reference, display: 'She', resource: person },
          performer: [
            { reference: null, display: 'nobody', resource: null },
            { reference, display: null, resource: person },
          ],
        },
      ],
    },
  })
  t.match(whole.body, plain.body)
})
