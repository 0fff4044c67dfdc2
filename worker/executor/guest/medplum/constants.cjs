/** Media types and code systems under Medplum's names. */

const ContentType = {
  CSS: 'text/css',
  DICOM: 'application/dicom',
  FAVICON: 'image/vnd.microsoft.icon',
  FHIR_JSON: 'application/fhir+json',
  FORM_URL_ENCODED: 'application/x-www-form-urlencoded',
  HL7_V2: 'x-application/hl7-v2+er7',
  HTML: 'text/html',
  JAVASCRIPT: 'text/javascript',
  JSON: 'application/json',
  JSON_PATCH: 'application/json-patch+json',
  JWT: 'application/jwt',
  MULTIPART_FORM_DATA: 'multipart/form-data',
  PNG: 'image/png',
  SCIM_JSON: 'application/scim+json',
  SVG: 'image/svg+xml',
  TEXT: 'text/plain',
  TYPESCRIPT: 'text/typescript',
  PING: 'x-application/ping',
  XML: 'text/xml',
  CDA_XML: 'application/cda+xml',
  OCTET_STREAM: 'application/octet-stream',
}

module.exports = {
  CPT: 'http://www.ama-assn.org/go/cpt',
  ContentType,
  ICD10: 'http://hl7.org/fhir/sid/icd-10',
  LOINC: 'http://loinc.org',
  NDC: 'http://hl7.org/fhir/sid/ndc',
  RXNORM: 'http://www.nlm.nih.gov/research/umls/rxnorm',
  SNOMED: 'http://snomed.info/sct',
  UCUM: 'http://unitsofmeasure.org',
}
