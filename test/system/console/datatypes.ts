/** A value of each datatype, and the text typed over a part of it. */

export interface Case {
  /** JSON, with `‹›` around the part to type over. */
  readonly value: string
  /** Elements below the value. */
  readonly into?: string
  readonly typed: string
  /** The stored value, if it is not a string. */
  readonly stored?: string
}

/** One for each type of `value[x]`, which are all datatypes that an element can have. */
export const CASES: Readonly<Record<string, Case>> = {
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
