// Prints what the npm package isoxml reads in a TaskData archive: a line for each attribute with its place, for each
// warning, and for each grid the sum of its cells: node tree.mjs FILE
import crypto from 'node:crypto';
import fs from 'node:fs';
import isoxml from 'isoxml';

const manager = new isoxml.ISOXMLManager({version: 4, rootFolder: ''});
await manager.parseISOXMLFile(fs.readFileSync(process.argv[2]), 'application/zip');
const out = [];
const walk = (place, value) => {
  if (value === undefined || value === null || value === '') return;
  if (value.attributes) {
    for (const [name, v] of Object.entries(value.attributes)) walk(`${place}.${name}`, v);
    if (value.binaryData) out.push(`${place}: ${crypto.createHash('sha256').update(value.binaryData).digest('hex')}`);
  } else if (Array.isArray(value)) {
    value.forEach((v, i) => walk(`${place}[${i}]`, v));
  } else if (value.xmlId !== undefined) {
    out.push(`${place}=${value.xmlId}`);
  } else if (typeof value !== 'object') {
    out.push(`${place}=${JSON.stringify(value)}`);
  }
};
walk('', manager.rootElement);
for (const warning of manager.getWarnings()) out.push(`warning ${JSON.stringify(warning)}`);
fs.writeFileSync(1, out.join('\n') + '\n');
