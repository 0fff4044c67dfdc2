/** The XHTML of a Narrative. https://hl7.org/fhir/R4/narrative.html, invariants txt-1 and txt-2. */

const ELEMENTS = new Set(
  (
    'a abbr acronym b big blockquote br caption cite code col colgroup dd dfn div dl dt em h1 h2 h3 h4 ' +
    'h5 h6 hr i img li ol p pre q samp small span strong sub sup table tbody td tfoot th thead tr tt ul var'
  ).split(' '),
)

const ATTRIBUTES = new Set(
  (
    'abbr accesskey align alt axis bgcolor border cellhalign cellpadding cellspacing cellvalign char ' +
    'charoff charset cite class colspan compact coords dir frame headers height href hreflang hspace id ' +
    'lang longdesc name nowrap rel rev rowspan rules scope shape span src start style summary tabindex ' +
    'title type valign value vspace width xmlns xml:lang xml:space'
  ).split(' '),
)

/** One tag from its `<`: a name, attributes, an end. Each part starts where the last one ended. */
const TAG = /<\/?([A-Za-z][\w:.-]*)|([A-Za-z_][\w:.-]*)\s*=\s*("[^"<]*"|'[^'<]*')|\s+|\/?>/y

/** No scripts, forms, events: every tag and attribute is one that a narrative may have. */
export function hasOnlyBasicHtml(div: unknown): boolean {
  if (typeof div !== 'string' || !/^\s*<div[\s>/]/.test(div)) return false
  for (let at = div.indexOf('<'); at !== -1; at = div.indexOf('<', at)) {
    const end = isDeclaration(div, at) ? endOfDeclaration(div, at) : endOfTag(div, at)
    if (end === -1) return false
    at = end
  }
  return true
}

function isDeclaration(div: string, at: number): boolean {
  return div[at + 1] === '!' || div[at + 1] === '?'
}

function endOfDeclaration(div: string, at: number): number {
  const [start, close] = div.startsWith('<!--', at) ? [at + 4, '-->'] : [at, '>']
  const end = div.indexOf(close, start)
  return end === -1 ? -1 : end + close.length
}

/** -1 for a tag that is not well formed or not allowed. */
function endOfTag(div: string, start: number): number {
  for (let at = start; ; at = TAG.lastIndex) {
    TAG.lastIndex = at
    const part = TAG.exec(div)
    if (part === null) return -1
    const [text, element, attribute] = part
    if (text.endsWith('>') && element === undefined && attribute === undefined) return TAG.lastIndex
    if (element !== undefined && (at !== start || !ELEMENTS.has(element))) return -1
    if (attribute !== undefined && !isAllowed(attribute, text)) return -1
  }
}

function isAllowed(attribute: string, text: string): boolean {
  if (!ATTRIBUTES.has(attribute) && !attribute.startsWith('xmlns:')) return false
  return !/^(?:href|src)\s*=\s*["']\s*(?:javascript|vbscript):/i.test(text)
}

/** Some text, or an image. */
export function hasText(div: unknown): boolean {
  if (typeof div !== 'string') return false
  for (const piece of div.split('<')) {
    const text = piece.slice(piece.indexOf('>') + 1)
    if (/[^\s]/.test(text) || piece.startsWith('img')) return true
  }
  return false
}
